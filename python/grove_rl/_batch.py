"""Batches of Python's environments, in this process or in several."""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import shared_memory
from multiprocessing.connection import Connection
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from ._spaces import Encoding

EnvFn = Callable[[], gymnasium.Env[Any, Any]]


class Batch:
    """Environments and the arrays through which native code steps them.

    ``reset()`` starts the episode of its level in each environment with a level of 0 or more in ``levels``;
    ``step()`` takes an action in each with an action of 0 or more in ``actions``.
    """

    _ARRAYS = {
        "levels": np.int64,
        "actions": np.int64,
        "rewards": np.float32,
        "terminated": np.uint8,
        "truncated": np.uint8,
    }

    def __init__(self, env_fns: Sequence[EnvFn], encoding: Encoding | None = None) -> None:
        self._envs = [make() for make in env_fns]
        self.encoding = encoding or Encoding.of(self._envs[0])
        self.num_envs = len(self._envs)
        self.num_features = self.encoding.num_features
        self.num_actions = self.encoding.num_actions
        for name, kind in self._ARRAYS.items():
            setattr(self, name, np.zeros(self.num_envs, kind))
        self.obs = np.zeros((self.num_envs, self.num_features), np.float32)
        # Observations before they are scaled, which is done for all environments at once.
        self._flat = np.zeros_like(self.obs)

    def reset(self) -> None:
        """Starts episodes."""
        flatten, flat = self.encoding.flatten, self._flat
        for i, level in enumerate(self.levels.tolist()):
            if level >= 0:
                flat[i] = flatten(self._envs[i].reset(seed=level)[0])
        self.encoding.scaled(flat, out=self.obs)

    def step(self) -> None:
        """Takes actions."""
        decode, flatten, flat, envs = self.encoding.decode, self.encoding.flatten, self._flat, self._envs
        for i, action in enumerate(self.actions.tolist()):
            if action >= 0:
                obs, self.rewards[i], self.terminated[i], self.truncated[i], _ = envs[i].step(decode(action))
                flat[i] = flatten(obs)
        self.encoding.scaled(flat, out=self.obs)

    def close(self) -> None:
        """Closes the environments."""
        for env in self._envs:
            env.close()


class ProcessBatch:
    """The same in several processes, with the arrays in memory that they share."""

    def __init__(self, env_fns: Sequence[EnvFn], num_processes: int) -> None:
        probe = env_fns[0]()
        self.encoding = Encoding.of(probe)
        probe.close()
        self.num_envs = len(env_fns)
        self.num_features = self.encoding.num_features
        self.num_actions = self.encoding.num_actions
        self._memory: list[shared_memory.SharedMemory] = []
        shapes = {name: ((self.num_envs,), kind) for name, kind in Batch._ARRAYS.items()}
        shapes["obs"] = ((self.num_envs, self.num_features), np.float32)
        names = {}
        for name, (shape, kind) in shapes.items():
            block = shared_memory.SharedMemory(create=True, size=_bytes(shape, kind))
            self._memory.append(block)
            names[name] = (block.name, shape, np.dtype(kind).str)
            setattr(self, name, np.ndarray(shape, kind, block.buf))
        # Forked children need no picklable environments; other systems have no fork.
        methods = multiprocessing.get_all_start_methods()
        context: Any = multiprocessing.get_context("fork" if "fork" in methods else "spawn")
        self._pipes: list[Connection] = []
        self._workers = []
        cuts = np.linspace(0, self.num_envs, num_processes + 1).astype(int)
        for first, end in zip(cuts, cuts[1:]):
            ours, theirs = context.Pipe()
            arguments = (theirs, list(env_fns[first:end]), self.encoding, names, first, end)
            worker = context.Process(target=_work, args=arguments, daemon=True)
            worker.start()
            theirs.close()
            self._pipes.append(ours)
            self._workers.append(worker)

    def reset(self) -> None:
        """Starts episodes."""
        self._call("reset")

    def step(self) -> None:
        """Takes actions."""
        self._call("step")

    def close(self) -> None:
        """Ends the processes."""
        for pipe in self._pipes:
            try:
                pipe.send("close")
            except OSError:
                pass
            pipe.close()
        for worker in self._workers:
            worker.join(5)
        for name in [*Batch._ARRAYS, "obs"]:
            delattr(self, name)
        for block in self._memory:
            try:
                block.close()
            except BufferError:
                # The run still refers to the memory; it is released with the run.
                pass
            block.unlink()

    def _call(self, what: str) -> None:
        for pipe in self._pipes:
            pipe.send(what)
        failures = [answer for answer in [pipe.recv() for pipe in self._pipes] if answer]
        if failures:
            raise RuntimeError(f"an environment failed in its process:\n{failures[0]}")


def _bytes(shape: tuple[int, ...], kind: Any) -> int:
    return max(int(np.prod(shape)) * np.dtype(kind).itemsize, 1)


def _work(
    pipe: Connection,
    env_fns: list[EnvFn],
    encoding: Encoding,
    names: dict[str, tuple[str, tuple[int, ...], str]],
    first: int,
    end: int,
) -> None:
    """Steps the environments ``first..end`` in a process of their own."""
    # Ctrl-C is for the process that trains: it ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    blocks, batch = [], None
    try:
        batch = Batch(env_fns, encoding)
        for name, (place, shape, kind) in names.items():
            block = shared_memory.SharedMemory(name=place)
            blocks.append(block)
            whole: NDArray[Any] = np.ndarray(shape, np.dtype(kind), block.buf)
            setattr(batch, name, whole[first:end])
    except Exception:
        _report(pipe, traceback.format_exc())
        return
    while True:
        try:
            what = pipe.recv()
        except EOFError:
            return
        if what == "close":
            batch.close()
            return
        try:
            getattr(batch, what)()
            pipe.send(None)
        except Exception:
            pipe.send(traceback.format_exc())
            return


def _report(pipe: Connection, text: str) -> None:
    """Answers the next call with a failure."""
    pipe.recv()
    pipe.send(text)
