"""Batches of Python's environments in this process."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from typing import Any

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

    ARRAYS: dict[str, type[np.number[Any]]] = {
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
        for name, kind in self.ARRAYS.items():
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
