"""The command-line program ``grove``."""

import sys

from . import _native


def main() -> int:
    """Runs the program with the process's command line and returns its exit status."""
    return _native.main(["grove", *sys.argv[1:]])
