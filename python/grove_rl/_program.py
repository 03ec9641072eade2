"""The command-line program ``grove``."""

import sys

from . import _native


def main() -> int:
    """Runs the program with the process's command line and returns its exit status."""
    # -P: a folder grove_rl in the current one is not this package.
    started_by = [sys.executable, "-P", "-m", "grove_rl._program"]
    return _native.main(["grove", *sys.argv[1:]], started_by)


if __name__ == "__main__":
    sys.exit(main())
