"""The built-in games as Gymnasium environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from . import _native
from ._settings import Integer, as_json, check_unmasked, is_integer
from ._threads import use_threads

_MAX_SEED = 1 << 63
_MAX_INT64 = (1 << 63) - 1

#: Maximum number of games in a batch.
_MAX_ENVS = 1 << 30

#: Product of features and games from which on native code steps with all threads.
_PARALLEL = 1 << 16


#: Observations, the last ones of episodes, rewards, ends and scores of a step, and the rows of the ends as truth values:
#: whether episodes terminated, were truncated, and ended.
_Buffers = tuple[
    NDArray[np.float32],
    NDArray[np.float32],
    NDArray[np.float64],
    NDArray[np.uint8],
    NDArray[np.float32],
    tuple[NDArray[np.bool_], ...],
]


def games() -> list[str]:
    """Returns the names of the built-in games."""
    return _native.names()


def _settings(game: str, parameters: dict[str, Any]) -> str:
    """Returns a game's parameters as the settings of a run."""
    return as_json({game: parameters} if parameters else {})


def _seed(seed: Any) -> int:
    """Validates a seed and returns it as an ``int``."""
    if not is_integer(seed) or not 0 <= seed < 1 << 64:
        raise ValueError(f"a seed is {seed!r}, but must be a whole number, at least 0 and less than 2^64")
    return int(seed)


def _not_ready(is_closed: bool) -> Exception:
    """Returns the error for a step before the first reset or after the end."""
    if is_closed:
        return ClosedEnvironmentError("the environment is closed; make a new one")
    return ResetNeeded("reset the environment before its first step")


def _check_unrendered(render_mode: str | None) -> None:
    # A TypeError, as by an environment that lacks the argument: Stable-Baselines3 then creates it without.
    if render_mode is not None:
        raise TypeError(f"render_mode is {render_mode!r}, but games are drawn by `grove record` alone")


def _spaces(native: _native.Games) -> tuple[spaces.Box, spaces.Discrete]:
    """Returns the spaces of the observations and the actions of one game."""
    return spaces.Box(-np.inf, np.inf, (native.num_features,), np.float32), spaces.Discrete(native.num_actions)


def _masks(native: _native.Games, *envs: int) -> dict[str, Any]:
    """Returns the infos of the current states: ``action_mask``, ``[*envs, num_actions]``, if actions may be illegal."""
    if not native.masked:
        return {}
    mask = np.empty((*envs, native.num_actions), np.uint8)
    native.legal(mask)
    return {"action_mask": mask.view(np.int8)}


class GroveVectorEnv(VectorEnv[NDArray[np.float32], NDArray[np.int64], NDArray[Any]]):
    """A batch of games of one kind, stepped by native code with the GIL released.

    >>> envs = grove_rl.make_vec("fruit", num_envs=4096)
    >>> obs, infos = envs.reset(seed=0)
    >>> obs, rewards, terminated, truncated, infos = envs.step(envs.action_space.sample())

    Environment ``i`` of seed ``s`` plays episode ``i`` of ``grove eval --seed s``. A list of seeds gives each
    environment the episode that ``gymnasium.make(...).reset(seed=...)`` plays. Both hold for the environments that a
    ``reset_mask`` selects.

    Infos hold ``score`` (the game's own metric, which may differ from the reward) of the episodes that ended, with
    the mask ``_score``; ``action_mask`` of games in which some actions are illegal; and in mode ``SAME_STEP``
    ``final_obs`` and ``final_info``, which holds the scores once more, with the masks ``_final_obs`` and ``_final_info``.
    """

    def __init__(
        self,
        game: str,
        num_envs: Integer = 1,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        copy: bool = True,
        render_mode: str | None = None,
        **parameters: Any,
    ) -> None:
        """Creates ``num_envs`` games.

        Args:
            game: A name of :func:`games`.
            num_envs: The number of games.
            autoreset_mode: When an environment whose episode has ended is reset, as in Gymnasium.
            copy: Whether each step returns new arrays. If false, each step overwrites those of the last one.
            render_mode: None: ``grove record`` and ``grove watch`` draw games.
            **parameters: The game's parameters, for instance ``rows=12`` for catch.
        """
        _check_unrendered(render_mode)
        mode = AutoresetMode(autoreset_mode)
        if not is_integer(num_envs) or not 1 <= num_envs <= _MAX_ENVS:
            raise ValueError(f"num_envs is {num_envs!r}, but must be a whole number, 1 to {_MAX_ENVS}")
        num_envs = int(num_envs)
        self._games = _native.Games(game, num_envs, mode.value, 0, _settings(game, parameters))
        self._is_ready = False
        self._num_features, self._is_masked = self._games.num_features, self._games.masked
        self._is_large = num_envs * self._num_features >= _PARALLEL
        self._mode = mode
        self._copy = copy
        self.game = game
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": mode, "render_modes": []}
        observation, action = _spaces(self._games)
        self.single_observation_space, self.single_action_space = observation, action
        self.observation_space = batch_space(observation, num_envs)
        self.action_space = batch_space(action, num_envs)
        self.feature_names = self._games.feature_names
        self.action_names = self._games.action_names
        self.references = dict(self._games.references)
        self._buffers = self._allocate()

    def reset(
        self,
        *,
        seed: Integer | Sequence[Integer | None] | NDArray[Any] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Starts new episodes, in all environments or in those of ``options["reset_mask"]``."""
        if self.closed:
            raise _not_ready(True)
        envs = range(self.num_envs)
        if options is not None and not isinstance(options, Mapping):
            raise ValueError(f"`options` is {options!r}, but must be a dict")
        mask = (options or {}).get("reset_mask")
        if mask is not None:
            check_unmasked("`reset_mask`", mask)
            mask = np.asarray(mask)
            if mask.dtype != np.bool_ or mask.shape != (self.num_envs,):
                raise ValueError(
                    f"`reset_mask` has shape {mask.shape} and type {mask.dtype}, but must be {self.num_envs} truth values"
                )
            if not self._is_ready and not mask.all():
                raise ResetNeeded("reset all environments before you reset some of them")
        if isinstance(seed, np.ndarray) and seed.ndim == 0:
            seed = _seed(seed)
        # An environment's seed and its episode of that seed; none to draw both.
        levels: list[tuple[int, int] | None]
        if isinstance(seed, list | tuple | np.ndarray):
            if len(seed) != self.num_envs:
                raise ValueError(f"{len(seed)} seeds were given for {self.num_envs} environments")
            seeds = [None if own is None else _seed(own) for own in seed]
            levels = [None if own is None else (own, 0) for own in seeds]
            if None not in seeds and (mask is None or mask.all()):
                # Later levels follow from the seeds, as they do from a single one.
                self.np_random = np.random.default_rng(np.array(seeds, np.uint64).view(np.uint32))
        elif seed is not None:
            seed = _seed(seed)
            super().reset(seed=seed)
            levels = [(seed, env) for env in envs]
        else:
            levels = [None] * self.num_envs
        if mask is None and not isinstance(seed, list | tuple | np.ndarray):
            first = levels[0]
            self._games.reset(self._draw() if first is None else first[0])
        else:
            for env in envs if mask is None else np.flatnonzero(mask).tolist():
                self._games.reset_env(env, *(levels[env] or (self._draw(), 0)))
        self._is_ready = True
        obs = np.empty((self.num_envs, self._num_features), np.float32)
        self._games.observe(obs)
        return obs, _masks(self._games, self.num_envs)

    def step(
        self, actions: NDArray[np.integer[Any]] | Sequence[Integer]
    ) -> tuple[
        NDArray[np.float32],
        NDArray[np.float64],
        NDArray[np.bool_],
        NDArray[np.bool_],
        dict[str, Any],
    ]:
        """Takes an action in every environment."""
        if not self._is_ready:
            raise _not_ready(self.closed)
        check_unmasked("the batch of actions", actions)
        given = np.asarray(actions)
        if given.dtype.kind not in "iu" or given.shape != (self.num_envs,):
            raise ValueError(
                f"actions have shape {given.shape} and type {given.dtype}, but must be {self.num_envs} whole numbers, "
                "one for each environment"
            )
        if given.dtype == np.uint64 and (given > _MAX_INT64).any():
            env = int(given.argmax())
            raise ValueError(f"action {given[env]} of environment {env} is none of {self.game}'s")
        if self._is_large:
            use_threads()
        if self._copy:
            self._buffers = self._allocate()
        obs, final_obs, rewards, ends, scores, (terminated, truncated, ended) = self._buffers
        has_ended = self._games.step(
            np.ascontiguousarray(given, np.int64), obs, final_obs, rewards, ends, scores
        )
        infos = _masks(self._games, self.num_envs) if self._is_masked else {}
        if has_ended:
            infos["score"], infos["_score"] = scores, ended
            if self._mode is AutoresetMode.SAME_STEP:
                infos["final_obs"], infos["_final_obs"] = final_obs, ended
                infos["final_info"], infos["_final_info"] = {"score": scores, "_score": ended}, ended
        return obs, rewards, terminated, truncated, infos

    def __repr__(self) -> str:
        """Names the game and the number of environments."""
        return f"GroveVectorEnv({self.game!r}, num_envs={self.num_envs})"

    def close_extras(self, **kwargs: Any) -> None:
        """Ends the environments."""
        self._is_ready = False

    def __getstate__(self) -> dict[str, Any]:
        """Returns the environments for ``pickle`` and ``copy``, without the arrays of the last step."""
        return {name: value for name, value in self.__dict__.items() if name != "_buffers"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Takes what :meth:`__getstate__` has returned."""
        self.__dict__.update(state)
        self._buffers = self._allocate()

    def _allocate(self) -> _Buffers:
        envs, features = self.num_envs, self._num_features
        kept = envs if self._mode is AutoresetMode.SAME_STEP else 0
        ends = np.empty((3, envs), np.uint8)
        return (
            np.empty((envs, features), np.float32),
            np.zeros((kept, features), np.float32),  # rows of episodes that go on may stay as they are
            np.empty(envs, np.float64),
            ends,
            np.empty(envs, np.float32),
            tuple(ends.view(np.bool_)),
        )

    def _draw(self) -> int:
        return int(self.np_random.integers(_MAX_SEED))


class GroveEnv(gymnasium.Env[NDArray[np.float32], np.int64]):
    """One game. Infos hold ``score`` at the end of an episode, and ``action_mask`` where a game has one."""

    metadata = {"render_modes": []}

    def __init__(self, game: str, *, render_mode: str | None = None, **parameters: Any) -> None:
        _check_unrendered(render_mode)
        self._games = _native.Games(game, 1, "Disabled", 0, _settings(game, parameters))
        self.game = game
        self._is_ready, self._is_closed = False, False
        self.observation_space, self.action_space = _spaces(self._games)
        self._num_features, self._is_masked = self._games.num_features, self._games.masked

    def reset(
        self, *, seed: Integer | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Starts an episode: that of ``seed``, or a new one."""
        if self._is_closed:
            raise _not_ready(True)
        seed = None if seed is None else _seed(seed)
        super().reset(seed=seed)
        level = seed if seed is not None else int(self.np_random.integers(_MAX_SEED))
        self._games.reset(level)
        self._is_ready = True
        obs = np.empty(self._num_features, np.float32)
        self._games.observe(obs)
        return obs, _masks(self._games)

    def step(
        self, action: Integer
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Takes an action."""
        if not self._is_ready:
            raise _not_ready(self._is_closed)
        if type(action) is not int:
            # NumPy has many types of whole numbers.
            check_unmasked("the action", action)
            number = np.asarray(action)
            if number.dtype.kind not in "iu" or number.ndim > 0:
                raise ValueError(f"the action is {action!r}, but must be a whole number")
            action = number.item()
        obs = np.empty(self._num_features, np.float32)
        try:
            reward, terminated, truncated, score = self._games.step_one(action, obs)
        except OverflowError:
            raise ValueError(f"the action is {action!r}, but must be a whole number of 64 bits") from None
        info = _masks(self._games) if self._is_masked else {}
        if terminated or truncated:
            info["score"] = score
        return obs, reward, terminated, truncated, info

    def close(self) -> None:
        """Ends the environment."""
        self._is_ready, self._is_closed = False, True


def make_vec(
    game: str,
    num_envs: Integer = 1,
    *,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    copy: bool = True,
    render_mode: str | None = None,
    **parameters: Any,
) -> GroveVectorEnv:
    """Creates a :class:`GroveVectorEnv`, whose arguments these are."""
    return GroveVectorEnv(
        game, num_envs, autoreset_mode=autoreset_mode, copy=copy, render_mode=render_mode, **parameters
    )


def register_envs() -> None:
    """Registers ``grove/Fruit-v0`` and so on with Gymnasium; repeated calls change nothing."""
    for game in games():
        name = f"grove/{game.capitalize()}-v0"
        if name not in gymnasium.registry:
            gymnasium.register(
                id=name,
                entry_point="grove_rl:GroveEnv",
                vector_entry_point="grove_rl:GroveVectorEnv",
                kwargs={"game": game},
            )
