"""Batches of Python's environments, in this process or in several."""

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
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import shared_memory
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from ._settings import MAX_REWARD, check_unmasked
from ._spaces import NUMBERS, Encoding
from ._threads import check_exit

EnvFn = Callable[[], gymnasium.Env[Any, Any]]

#: The spaces of observations and of actions.
Spaces = tuple[spaces.Space[Any], spaces.Space[Any]]

#: Seconds for which processes that are to close their environments may take.
_CLOSING = 5.0

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
        ValueError: If the function returns something else, or an environment without spaces.
    """
    env = make()
    if not isinstance(env, gymnasium.Env):
        raise ValueError(f"{make!r} returned {env!r}, but must make an environment, a gymnasium.Env")
    for name in ("observation_space", "action_space"):
        space = getattr(env, name, None)
        if not isinstance(space, spaces.Space):
            close_all([env])
            raise ValueError(f"`{name}` of {env!r} is {space!r}, but must be a space of gymnasium.spaces")
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

    def __init__(self, env_fns: Sequence[EnvFn], common: Spaces, first: int = 0) -> None:
        """Makes the environments, which messages number from ``first`` on.

        Raises:
            ValueError: If the spaces of an environment are not those that all have in ``common``, or two functions
                return the same environment.
        """
        self.encoding = Encoding.of(*common)
        self._envs: list[gymnasium.Env[Any, Any]] = []
        self._first = first
        try:
            for make in env_fns:
                self._envs.append(make_env(make))
            self._check(common)
        except BaseException:
            close_all(self._envs)
            raise
        self.num_envs = len(self._envs)
        self.num_features = self.encoding.num_features
        self.num_actions = self.encoding.num_actions
        for name, kind in self._ARRAYS.items():
            setattr(self, name, np.zeros(self.num_envs, kind))
        self.obs = np.zeros((self.num_envs, self.num_features), np.float32)
        # Observations before they are scaled, which is done for all environments at once.
        self._flat = np.zeros_like(self.obs)
        # Steps of each environment's episode, and the sum of its rewards.
        self._times = [0] * self.num_envs
        self._returns = np.zeros(self.num_envs)

    def reset(self) -> None:
        """Starts episodes."""
        check_exit()
        for i, level in enumerate(self.levels.tolist()):
            if level >= 0:
                self._times[i] = 0
                self._returns[i] = 0
                obs, _ = self._parts(i, self._envs[i].reset(seed=level), _RESET)
                self._keep(i, obs)
        self._finish()

    def step(self) -> None:
        """Takes actions."""
        check_exit()
        decode, envs, rewards = self.encoding.decode, self._envs, self.rewards
        # Unlike the array itself, its memory takes numbers beyond 32 bits without a warning: they become infinite, and are
        # refused below.
        quietly: Any = rewards.data
        for i, action in enumerate(self.actions.tolist()):
            if action >= 0:
                self._times[i] += 1
                answer = self._parts(i, envs[i].step(decode(action)), _STEP)
                obs, reward, terminated, truncated, _ = answer
                is_number = isinstance(reward, _REAL) and not isinstance(reward, np.timedelta64)
                number = reward if is_number else self._number(i, reward)
                try:
                    quietly[i] = float(number)
                except OverflowError:
                    quietly[i] = np.inf if number > 0 else -np.inf
                self.terminated[i] = terminated if isinstance(terminated, _FLAG) else self._flag(i, terminated)
                self.truncated[i] = truncated if isinstance(truncated, _FLAG) else self._flag(i, truncated)
                self._keep(i, obs)
        with np.errstate(all="ignore"):
            np.add(self._returns, rewards, out=self._returns, where=self.actions >= 0)
        # Of a number that is NaN, neither is true.
        is_usable = (np.abs(rewards) <= MAX_REWARD) & (np.abs(self._returns) <= MAX_REWARD)
        if not is_usable.all():
            i = int(np.argmin(is_usable))
            reward, total = rewards[i], self._returns[i]
            what = f"the sum of the rewards is {total:g}" if abs(reward) <= MAX_REWARD else f"the reward is {reward:g}"
            raise ValueError(f"{self._place(i)}: {what}, but must be a finite number, at most {MAX_REWARD:g} in size")
        self._finish()

    def close(self) -> None:
        """Closes the environments, all of them even if one raises."""
        error = close_all(self._envs)
        if error is not None:
            raise error

    def _check(self, common: Spaces) -> None:
        """Checks that the environments are as many as they seem, and alike."""
        numbers: dict[int, int] = {}
        for i, env in enumerate(self._envs, self._first):
            same = numbers.setdefault(id(env.unwrapped), i)
            if same != i:
                raise ValueError(
                    f"environment {i} is environment {same} once more: the function must make a new environment each "
                    "time that it is called"
                )
            for what, space, other in zip(
                ("observations", "actions"), (env.observation_space, env.action_space), common, strict=True
            ):
                if space != other:
                    raise ValueError(
                        f"environment {i} has the {what} {space}, but environment 0 has {other}: all must have the "
                        "same spaces"
                    )

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
        """Returns a reward that is not a scalar of Python or NumPy."""
        wrong = f"{self._place(i)}: the reward is {reprlib.repr(reward)}, but must be a number"
        check_unmasked(f"{self._place(i)}: the reward", reward)
        try:
            number = np.asarray(reward)
        except Exception as error:
            # For instance, a tensor that requires gradients.
            raise ValueError(f"{wrong} ({type(error).__name__}: {error})") from error
        if number.size != 1 or number.dtype.kind not in NUMBERS:
            raise ValueError(wrong)
        return number.item()

    def _flag(self, i: int, flag: Any) -> bool:
        """Returns whether an episode was terminated or truncated, of a value that is not a truth value."""
        wrong = f"{self._place(i)}: `terminated` or `truncated` is {reprlib.repr(flag)}, but both must be True or False"
        try:
            is_flag = not isinstance(flag, str) and np.ndim(flag) == 0 and flag in (False, True)
        except Exception as error:
            # For instance, a missing value of pandas.
            raise ValueError(f"{wrong} ({type(error).__name__}: {error})") from error
        if not is_flag:
            raise ValueError(wrong)
        return bool(flag)

    def _keep(self, i: int, obs: Any) -> None:
        """Stores an observation."""
        try:
            flat = self.encoding.flatten(obs)
        except ValueError as error:
            raise ValueError(f"{self._place(i)}: {error}") from error
        if flat.dtype.kind == "f" and flat.dtype.itemsize > 4:
            # What is beyond 32 bits becomes infinite, and is refused when the observations are scaled.
            with np.errstate(all="ignore"):
                self._flat[i] = flat
        else:
            self._flat[i] = flat

    def _finish(self) -> None:
        """Scales the observations."""
        with np.errstate(all="ignore"):
            self.encoding.scaled(self._flat, out=self.obs)
        if not np.isfinite(self.obs).all():
            i, feature = (int(at) for at in np.argwhere(~np.isfinite(self.obs))[0])
            number = self._flat[i, feature]
            what = "a finite number of 32 bits" if not np.isfinite(number) else "within or near the bounds of its space"
            raise ValueError(f"{self._place(i)}: the observation's number {feature} is {number}, but must be {what}")


def close_all(envs: Sequence[gymnasium.Env[Any, Any]]) -> BaseException | None:
    """Closes all environments and returns the first exception that one raises, be it the SystemExit of `sys.exit`.

    Raises:
        KeyboardInterrupt: If Ctrl-C is pressed meanwhile; all environments have been closed nevertheless.
    """
    first, pressed = None, None
    for env in envs:
        try:
            env.close()
        except KeyboardInterrupt as error:
            pressed = error
        except BaseException as error:
            first = first or error
    if pressed is not None:
        raise pressed
    return first


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
    """The same in several processes, with the arrays in memory that they share."""

    def __init__(self, env_fns: Sequence[EnvFn], common: Spaces, num_processes: int) -> None:
        self.encoding = Encoding.of(*common)
        self.num_envs = len(env_fns)
        self.num_features = self.encoding.num_features
        self.num_actions = self.encoding.num_actions
        self._memory: list[shared_memory.SharedMemory] = []
        # The largest first, for which there may be no room.
        shapes: dict[str, tuple[tuple[int, ...], type[np.number[Any]]]] = {
            "obs": ((self.num_envs, self.num_features), np.float32),
            **{name: ((self.num_envs,), kind) for name, kind in Batch._ARRAYS.items()},
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
            # For instance, no room for all arrays, functions that cannot be pickled, or Ctrl-C: the memory would outlive this
            # process.
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
        for name in [*Batch._ARRAYS, "obs"]:
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
