"""Batches of Python's environments, in this process or in several."""

from __future__ import annotations

import multiprocessing
import reprlib
import signal
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import shared_memory
from multiprocessing.connection import Connection
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from ._spaces import NUMBERS, Encoding

EnvFn = Callable[[], gymnasium.Env[Any, Any]]

#: Types of scalars that are real numbers.
_REAL = (float, int, np.floating, np.integer)

#: Types of truth values.
_FLAG = (bool, np.bool_)

#: The values that an environment returns.
_RESET = ("observation", "info")
_STEP = ("observation", "reward", "terminated", "truncated", "info")


def make_env(make: EnvFn) -> gymnasium.Env[Any, Any]:
    """Makes an environment.

    Raises:
        ValueError: If the function returns something else.
    """
    env = make()
    if not isinstance(env, gymnasium.Env):
        raise ValueError(f"{make!r} returned {env!r}, but must make an environment, a gymnasium.Env")
    return env


class Batch:
    """Environments and the arrays through which native code steps them.

    ``reset()`` starts the episode of its level in each environment with a level of 0 or more in ``levels``;
    ``step()`` takes an action in each with an action of 0 or more in ``actions``.
    """

    _ARRAYS: dict[str, type[np.number[Any]]] = {
        "levels": np.int64,
        "actions": np.int64,
        "rewards": np.float32,
        "terminated": np.uint8,
        "truncated": np.uint8,
    }
    levels: NDArray[np.int64]
    actions: NDArray[np.int64]
    rewards: NDArray[np.float32]
    terminated: NDArray[np.uint8]
    truncated: NDArray[np.uint8]

    def __init__(self, env_fns: Sequence[EnvFn], encoding: Encoding | None = None, first: int = 0) -> None:
        """Makes the environments, which messages number from ``first`` on."""
        self._envs = [make_env(make) for make in env_fns]
        self._first = first
        self.encoding = encoding or Encoding.of(self._envs[0])
        self.num_envs = len(self._envs)
        self.num_features = self.encoding.num_features
        self.num_actions = self.encoding.num_actions
        for name, kind in self._ARRAYS.items():
            setattr(self, name, np.zeros(self.num_envs, kind))
        self.obs = np.zeros((self.num_envs, self.num_features), np.float32)
        # Observations before they are scaled, which is done for all environments at once.
        self._flat = np.zeros_like(self.obs)
        # Steps of each environment's episode.
        self._times = [0] * self.num_envs

    def reset(self) -> None:
        """Starts episodes."""
        for i, level in enumerate(self.levels.tolist()):
            if level >= 0:
                self._times[i] = 0
                obs, _ = self._parts(i, self._envs[i].reset(seed=level), _RESET)
                self._keep(i, obs)
        self._finish()

    def step(self) -> None:
        """Takes actions."""
        decode, envs, rewards = self.encoding.decode, self._envs, self.rewards
        for i, action in enumerate(self.actions.tolist()):
            if action >= 0:
                self._times[i] += 1
                answer = self._parts(i, envs[i].step(decode(action)), _STEP)
                obs, reward, terminated, truncated, _ = answer
                rewards[i] = reward if isinstance(reward, _REAL) else self._number(i, reward)
                self.terminated[i] = terminated if isinstance(terminated, _FLAG) else self._flag(i, terminated)
                self.truncated[i] = truncated if isinstance(truncated, _FLAG) else self._flag(i, truncated)
                self._keep(i, obs)
        if not np.isfinite(rewards).all():
            i = int(np.flatnonzero(~np.isfinite(rewards))[0])
            raise ValueError(f"{self._place(i)}: the reward is {rewards[i]}, but must be a finite number of 32 bits")
        self._finish()

    def close(self) -> None:
        """Closes the environments."""
        for env in self._envs:
            env.close()

    def _place(self, i: int) -> str:
        """Names an environment's last step."""
        time, env = self._times[i], self._first + i
        return f"step {time} of environment {env}" if time else f"the reset of environment {env}"

    def _parts(self, i: int, answer: Any, parts: tuple[str, ...]) -> Any:
        """Returns an environment's answer, which has these parts."""
        if not isinstance(answer, tuple | list) or len(answer) != len(parts):
            raise ValueError(
                f"{self._place(i)} returned {reprlib.repr(answer)}, but must return {len(parts)} values: "
                f"{', '.join(parts)}"
            )
        return answer

    def _number(self, i: int, reward: Any) -> Any:
        """Returns a reward that is no scalar of Python or NumPy."""
        number = np.asarray(reward)
        if number.size != 1 or number.dtype.kind not in NUMBERS:
            raise ValueError(f"{self._place(i)}: the reward is {reprlib.repr(reward)}, but must be a number")
        return number.item()

    def _flag(self, i: int, flag: Any) -> bool:
        """Returns whether an episode was terminated or truncated, of a value that is no truth value."""
        if isinstance(flag, str) or np.ndim(flag) > 0 or flag not in (False, True):
            raise ValueError(
                f"{self._place(i)}: `terminated` or `truncated` is {reprlib.repr(flag)}, but both must be True or False"
            )
        return bool(flag)

    def _keep(self, i: int, obs: Any) -> None:
        """Stores an observation."""
        try:
            self._flat[i] = self.encoding.flatten(obs)
        except ValueError as error:
            raise ValueError(f"{self._place(i)}: {error}") from error

    def _finish(self) -> None:
        """Scales the observations."""
        if not np.isfinite(self._flat).all():
            i, feature = (int(at) for at in np.argwhere(~np.isfinite(self._flat))[0])
            raise ValueError(
                f"{self._place(i)}: the observation's number {feature} is {self._flat[i, feature]}, but must be a "
                "finite number of 32 bits"
            )
        self.encoding.scaled(self._flat, out=self.obs)


class ProcessBatch:
    """The same in several processes, with the arrays in memory that they share."""

    def __init__(self, env_fns: Sequence[EnvFn], num_processes: int) -> None:
        probe = make_env(env_fns[0])
        self.encoding = Encoding.of(probe)
        probe.close()
        self.num_envs = len(env_fns)
        self.num_features = self.encoding.num_features
        self.num_actions = self.encoding.num_actions
        self._memory: list[shared_memory.SharedMemory] = []
        shapes: dict[str, tuple[tuple[int, ...], type[np.number[Any]]]] = {
            name: ((self.num_envs,), kind) for name, kind in Batch._ARRAYS.items()
        }
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
        self._workers: list[tuple[Any, range]] = []
        cuts = np.linspace(0, self.num_envs, min(num_processes, self.num_envs) + 1).astype(int)
        try:
            for first, end in zip(cuts, cuts[1:]):
                ours, theirs = context.Pipe()
                arguments = (theirs, list(env_fns[first:end]), self.encoding, names, first, end)
                worker = context.Process(target=_work, args=arguments, daemon=True)
                worker.start()
                theirs.close()
                self._pipes.append(ours)
                self._workers.append((worker, range(first, end)))
        except BaseException:
            # For instance, functions that cannot be pickled: the memory would outlive this process.
            self.close()
            raise

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
        for worker, _ in self._workers:
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


def _ended(worker: Any, envs: range) -> RuntimeError:
    """Returns the error for a process that has ended on its own."""
    worker.join(5)
    code = worker.exitcode
    how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
    return RuntimeError(f"the process of the environments {envs[0]} to {envs[-1]} {how}")


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
    blocks = []
    # An environment may raise anything, such as the SystemExit of `sys.exit`.
    try:
        batch = Batch(env_fns, encoding, first)
        for name, (place, shape, kind) in names.items():
            block = shared_memory.SharedMemory(name=place)
            blocks.append(block)
            whole: NDArray[Any] = np.ndarray(shape, np.dtype(kind), block.buf)
            setattr(batch, name, whole[first:end])
    except BaseException:
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
            answer = None
        except BaseException:
            answer = traceback.format_exc()
        pipe.send(answer)
        if answer is not None:
            return


def _report(pipe: Connection, text: str) -> None:
    """Answers the next call with a failure."""
    pipe.recv()
    pipe.send(text)
