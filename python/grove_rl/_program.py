"""The command-line program ``grove``."""

import signal
import sys

from . import _native
from ._train import set_runtime_dir


def main() -> int:
    """Runs the program with the process's command line and returns its exit status."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Python's handler only runs between instructions of Python, of which there are none until the program ends.
        # Commands that save on Ctrl-C set a handler of their own.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    set_runtime_dir()
    # -P: a folder grove_rl in the current one is not this package.
    started_by = [sys.executable, "-P", "-m", "grove_rl._program"]
    return _native.main(["grove", *sys.argv[1:]], started_by)


if __name__ == "__main__":
    sys.exit(main())
