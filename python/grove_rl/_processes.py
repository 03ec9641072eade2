"""Batches of Python's environments in several processes."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import multiprocessing.spawn
import os
import pickle
import reprlib
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from multiprocessing import shared_memory
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from ._batch import Batch, EnvFn, Spaces
from ._spaces import Encoding
from ._threads import check_exit

#: Seconds for which processes that are to close their environments may take.
_CLOSING = 5.0

#: Processes start afresh: a fork would lack the threads of this one, for which its libraries would wait without end.
_SPAWN = multiprocessing.get_context("spawn")


#: Whether this thread starts a process that does not execute the main script.
_STARTING = threading.local()
_preparation_data: Any = multiprocessing.spawn.get_preparation_data


def _preparation_without_main(name: str) -> dict[str, Any]:
    """Returns what a new process is prepared by, without the main script if this thread leaves it out."""
    data: dict[str, Any] = _preparation_data(name)
    if getattr(_STARTING, "is_without_main", False):
        data.pop("init_main_from_name", None)
        data.pop("init_main_from_path", None)
    return data


multiprocessing.spawn.get_preparation_data = _preparation_without_main  # type: ignore[assignment]


def _start(process: Any) -> None:
    """Starts a process that does not execute the main script again: what it needs of that is pickled by value."""
    _STARTING.is_without_main = True
    try:
        process.start()
    finally:
        _STARTING.is_without_main = False


@contextlib.contextmanager
def _interrupts_deferred() -> Iterator[None]:
    """Defers Ctrl-C, and lets processes that are started begin with it blocked.

    They would end in the midst of their imports, this process would not know one that it has just started, and leave those
    that it is ending.
    """
    pressed: list[int] = []
    # Other threads than the main one have no handlers, and None is one that is not Python's.
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT) if is_main else None
    if callable(handler):
        signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    # The mask is for the new processes: in this one, another thread may take the signal in spite of it.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if hasattr(signal, "pthread_sigmask") else None
    try:
        yield
    finally:
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if callable(handler):
            signal.signal(signal.SIGINT, handler)
        if pressed:
            signal.raise_signal(signal.SIGINT)


def _pickled(env_fns: list[EnvFn], common: Spaces) -> bytes:
    """Returns the functions and spaces for another process.

    Raises:
        ValueError: If they refer to something that cannot be pickled.
    """
    # The main script in a process of multiprocessing is a module of this name, which new processes do not have.
    main = sys.modules.get("__mp_main__")
    if main is not None and main.__name__ == "__mp_main__":
        cloudpickle.register_pickle_by_value(main)
    try:
        return cloudpickle.dumps((env_fns, common))
    except Exception as error:
        wrong = next((env_fn for env_fn in env_fns if not _is_picklable(env_fn)), common)
        raise ValueError(
            "`num_processes` needs functions that can be pickled with all that they refer to, but "
            f"{reprlib.repr(wrong)} cannot ({type(error).__name__}: {error})"
        ) from error


def _is_picklable(value: Any) -> bool:
    try:
        return bool(cloudpickle.dumps(value))
    except Exception:
        return False


class ProcessBatch:
    """A :class:`Batch` in several processes, with the arrays in memory that they share."""

    def __init__(self, env_fns: Sequence[EnvFn], common: Spaces, num_processes: int) -> None:
        self.encoding = Encoding.of(*common)
        self.num_envs = len(env_fns)
        self.num_features = self.encoding.num_features
        self.num_actions = self.encoding.num_actions
        self._memory: list[shared_memory.SharedMemory] = []
        # The largest first, for which there may be no room.
        shapes: dict[str, tuple[tuple[int, ...], type[np.number[Any]]]] = {
            "obs": ((self.num_envs, self.num_features), np.float32),
            **{name: ((self.num_envs,), kind) for name, kind in Batch.ARRAYS.items()},
        }
        names = {}
        self._pipes: list[Connection] = []
        self._workers: list[tuple[Any, range]] = []
        cuts = np.linspace(0, self.num_envs, min(num_processes, self.num_envs) + 1).astype(int).tolist()
        try:
            for name, (shape, kind) in shapes.items():
                block = _shared(_bytes(shape, kind))
                self._memory.append(block)
                names[name] = (block.name, shape, np.dtype(kind).str)
                setattr(self, name, np.ndarray(shape, kind, block.buf))
            with _interrupts_deferred():
                for first, end in zip(cuts, cuts[1:]):
                    ours, theirs = _SPAWN.Pipe()
                    self._pipes.append(ours)
                    arguments = (theirs, _pickled(list(env_fns[first:end]), common), names, first, end)
                    worker = _SPAWN.Process(target=_work, args=arguments, daemon=True)
                    _start(worker)
                    theirs.close()
                    self._workers.append((worker, range(first, end)))
        except BaseException:
            # For instance, no room for all arrays, functions that cannot be pickled, or Ctrl-C: the memory would
            # outlive this process.
            self.close()
            raise

    def reset(self) -> None:
        """Starts episodes."""
        self._call("reset")

    def step(self) -> None:
        """Takes actions."""
        self._call("step")

    def close(self) -> None:
        """Ends the processes.

        Raises:
            KeyboardInterrupt: If Ctrl-C is pressed meanwhile; processes and memory are gone nevertheless.
        """
        with _interrupts_deferred():
            self._close()

    def _close(self) -> None:
        for pipe in self._pipes:
            try:
                pipe.send("close")
            except OSError:
                pass
            pipe.close()
        workers = [worker for worker, _ in self._workers]
        _join(workers)
        for worker in workers:
            worker.terminate()
        _join(workers)
        # One that handles the signal itself may go on, and this process would wait for it at its own end.
        for worker in workers:
            worker.kill()
            worker.join()
        for name in [*Batch.ARRAYS, "obs"]:
            self.__dict__.pop(name, None)
        for block in self._memory:
            try:
                block.close()
            except BufferError:
                # The run still refers to the memory; it is released with the run.
                pass
            block.unlink()

    def _call(self, what: str) -> None:
        check_exit()
        answers = []
        for pipe, (worker, envs) in zip(self._pipes, self._workers, strict=True):
            try:
                pipe.send(what)
            except OSError as error:
                raise _ended(worker, envs) from error
        for pipe, (worker, envs) in zip(self._pipes, self._workers, strict=True):
            try:
                answers.append(pipe.recv())
            except (EOFError, OSError) as error:
                raise _ended(worker, envs) from error
        failures = [answer for answer in answers if answer]
        if failures:
            raise RuntimeError(f"an environment failed in its process:\n{failures[0]}")


def _join(workers: Sequence[Any]) -> None:
    """Waits for processes to end, all together for a few seconds."""
    until = time.monotonic() + _CLOSING
    for worker in workers:
        worker.join(max(until - time.monotonic(), 0))


def _ended(worker: Any, envs: range) -> RuntimeError:
    """Returns the error for a process that has ended on its own."""
    worker.join(5)
    code = worker.exitcode
    how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
    return RuntimeError(f"the process of the environments {envs[0]} to {envs[-1]} {how}")


def _bytes(shape: tuple[int, ...], kind: Any) -> int:
    return max(int(np.prod(shape)) * np.dtype(kind).itemsize, 1)


def _shared(size: int) -> shared_memory.SharedMemory:
    """Makes memory that processes share.

    Raises:
        ValueError: If there is less; a process that wrote to it would be ended by a signal.
    """
    block = shared_memory.SharedMemory(create=True, size=size)
    # Where this is not to be had, memory is taken as it is written to.
    file = getattr(block, "_fd", -1)
    try:
        if file >= 0 and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file, 0, size)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            block.close()
            block.unlink()
            raise ValueError(
                f"`num_processes` needs {size / 1e6:,.1f} MB of shared memory, but there is less ({error}): lower "
                "`num_groups` or `group_size`, or enlarge /dev/shm"
            ) from error
    return block


def _work(
    pipe: Connection,
    pickled: bytes,
    names: dict[str, tuple[str, tuple[int, ...], str]],
    first: int,
    end: int,
) -> None:
    """Steps the environments ``first..end`` in a process of their own."""
    # Ctrl-C is for the process that trains: it ends the others. Processes that an environment starts need it unblocked.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    blocks = []
    # An environment may raise anything, such as the SystemExit of `sys.exit`.
    try:
        env_fns, common = pickle.loads(pickled)
        batch = Batch(env_fns, common, first)
        for name, (place, shape, kind) in names.items():
            block = shared_memory.SharedMemory(name=place)
            blocks.append(block)
            whole: NDArray[Any] = np.ndarray(shape, np.dtype(kind), block.buf)
            setattr(batch, name, whole[first:end])
    except BaseException:
        _report(pipe, traceback.format_exc())
        return
    answer = None
    # A pipe that is closed: the process that trains has ended.
    with contextlib.suppress(EOFError, OSError):
        while answer is None and (what := pipe.recv()) != "close":
            try:
                getattr(batch, what)()
            except BaseException:
                answer = traceback.format_exc()
            pipe.send(answer)
    batch.close()


def _report(pipe: Connection, text: str) -> None:
    """Answers the next call with a failure."""
    with contextlib.suppress(EOFError, OSError):
        pipe.recv()
        pipe.send(text)
