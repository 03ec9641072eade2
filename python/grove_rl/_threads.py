"""The threads of native code, which do not outlive a fork, and those of the user, which must not outlive Python."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

#: Seconds for which the end of the process waits.
_ENDING = 5.0

#: The daemon threads on which native code calls Python code, and whether the process ends.
_called: set[threading.Thread] = set()
_is_exiting = False

#: The process in which native code has started its threads.
_owner: int | None = None


def use_threads() -> None:
    """Notes that native code starts threads in this process or has done so.

    Raises:
        RuntimeError: If it has done so in a process that this one was forked from: native code would wait for them
            without end.
    """
    global _owner
    process = os.getpid()
    if _owner is None:
        _owner = process
    if _owner != process:
        raise RuntimeError(
            f"process {process} was forked from process {_owner} after that had used threads of native code, which "
            "a fork does not have; start processes with the method `spawn` or `forkserver`: "
            "multiprocessing.get_context('spawn')"
        )


@contextmanager
def called() -> Iterator[None]:
    """Lets the end of the process wait for Python code that native code calls on a daemon thread.

    Python would unwind the thread through native code, and that aborts the process.

    Raises:
        SystemExit: If the process ends already.
    """
    thread = threading.current_thread()
    is_new = thread.daemon and thread not in _called
    if is_new:
        _called.add(thread)
    try:
        check_exit()
        yield
    finally:
        if is_new:
            _called.discard(thread)


def check_exit() -> None:
    """Ends the run of a daemon thread if the process ends.

    Raises:
        SystemExit: If it does.
    """
    if _is_exiting and threading.current_thread() in _called:
        raise SystemExit("the process ends")


def end_runs() -> None:
    """Ends the runs in Python environments on daemon threads, and waits for them and for other Python code."""
    global _is_exiting
    _is_exiting = True
    until = time.monotonic() + _ENDING
    # After a fork, no other thread is alive.
    others = _called - {threading.current_thread()}
    while any(thread in _called and thread.is_alive() for thread in others) and time.monotonic() < until:
        time.sleep(0.01)
