"""The threads of native code, which do not outlive a fork."""

from __future__ import annotations

import os

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
