"""Trained policies."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray

from . import _native
from ._settings import Integer, check_integer, check_unmasked
from ._spaces import NUMBERS, SPACES, Encoding


class Policy:
    """A policy on the CPU.

    Call it with an observation, or with a batch of them, for the most likely actions. A policy with memory keeps its
    state from call to call; :meth:`reset` clears it at the start of an episode.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        observation_space: spaces.Space[Any] | None = None,
        seed: Integer | None = None,
    ) -> None:
        """Loads the policy of a run, of a checkpoint or of a policy's file.

        Args:
            path: The folder of the run or checkpoint, the file, or the name of a run in ``runs`` without its number.
            observation_space: The space of its environment, if observations are to be flattened.
            seed: The seed of the actions that ``deterministic=False`` draws; by default another one each time.

        Raises:
            ValueError: If there is no policy, if the space does not fit it, or if it was trained in an environment of
                Python and the file that describes the scaling of its observations is missing.
        """
        if observation_space is not None and not isinstance(observation_space, spaces.Space):
            raise ValueError(
                f"`observation_space` is {observation_space!r}, but must be a space of gymnasium.spaces, for instance "
                "env.observation_space"
            )
        self._native = _native.Policy(path)
        self._path = os.fspath(path)
        self.game = self._native.game
        self.iteration = self._native.iteration
        self.num_features = self._native.num_features
        self.num_actions = self._native.num_actions
        self._rng = np.random.default_rng(None if seed is None else check_integer("seed", seed, 0))
        self._fresh = np.array(self._native.initial_memory, np.float32)
        self._memory = np.empty((0, self._fresh.size), np.float32)
        self._encoding: Encoding | None = None
        if self.game != "host":
            if observation_space is not None and observation_space.shape != (self.num_features,):
                raise ValueError(
                    f"an observation of {self.game} has shape ({self.num_features},), but one of {observation_space} "
                    f"has shape {observation_space.shape}"
                )
            return
        file = _spaces_file(Path(self._native.path))
        if file is None:
            raise ValueError(
                f"the policy {os.fspath(path)} was trained in an environment of Python, but neither its folder nor "
                f"that of its run has the file {SPACES}, which describes how observations are scaled"
            )
        try:
            saved = json.loads(file.read_text())
            Encoding.load(saved)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{file} is damaged ({type(error).__name__}: {error})") from error
        self._encoding = Encoding.load(saved, observation_space)
        found = (self._encoding.num_features, self._encoding.num_actions)
        if found != (self.num_features, self.num_actions):
            raise ValueError(
                f"{file} is of a policy with {found[0]} features and {found[1]} actions, but {os.fspath(path)} has "
                f"{self.num_features} and {self.num_actions}"
            )

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        observation_space: spaces.Space[Any] | None = None,
        seed: Integer | None = None,
    ) -> Policy:
        """Loads the policy of a run, of a checkpoint or of a policy's file; arguments as of the constructor."""
        return cls(path, observation_space, seed)

    def __repr__(self) -> str:
        """Names the place of the policy, its game and its iteration."""
        return f"Policy({self._path!r}, game={self.game!r}, iteration={self.iteration})"

    def __getstate__(self) -> dict[str, Any]:
        """Returns the policy for ``pickle`` and ``copy``, with its memory and the state of its draws."""
        own = {"_memory": self._memory.copy(), "_rng": copy.deepcopy(self._rng)}
        return {**self.__dict__, **own, "_native": (self._native.file(), self._native.path)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Takes what :meth:`__getstate__` has returned; the run's folder need not exist."""
        self.__dict__.update(state)
        self._native = _native.Policy.of_file(*state["_native"])

    def logits(self, obs: Any) -> NDArray[np.float32]:
        """Returns logits, ``[num_envs, num_actions]``, of observations, ``[num_envs, num_features]``.

        Raises:
            ValueError: If observations have another shape, are not finite numbers, are so large that logits are not
                finite, or are another number than the memory of the last call is of.
        """
        logits, self._memory = self._step(obs)
        return logits

    def _step(self, obs: Any) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Returns logits as :meth:`logits`, and the memory after the step."""
        if self._encoding is not None:
            obs = self._encoding.encode_batch(obs)
        for part in obs if isinstance(obs, list | tuple) else [obs]:
            check_unmasked("an observation", part)
        obs = np.asarray(obs)
        if obs.dtype.kind not in NUMBERS:
            raise ValueError(f"observations have the type {obs.dtype}, but must be numbers")
        # What is beyond 32 bits becomes infinite.
        with np.errstate(all="ignore"):
            obs = np.ascontiguousarray(obs, np.float32)
        if not np.isfinite(obs).all():
            raise ValueError("an observation holds a number that is not finite")
        if obs.ndim != 2 or obs.shape[1] != self.num_features:
            raise ValueError(f"observations are {obs.shape}, but must be (n, {self.num_features})")
        memory = self._memory.copy()
        if len(memory) != len(obs):
            if memory.size > 0:
                raise ValueError(
                    f"the policy remembers {len(memory)} environments, but {len(obs)} observations were given; call "
                    "`reset()` to forget them"
                )
            memory = np.tile(self._fresh, (len(obs), 1))
        logits = np.empty((len(obs), self.num_actions), np.float32)
        self._native.compute_logits(obs, memory, logits)
        if not np.isfinite(logits).all():
            raise ValueError("an observation holds a number so large that the logits are not finite")
        return logits, memory

    def __call__(
        self, obs: Any, *, deterministic: bool = True, action_mask: ArrayLike | None = None
    ) -> Any:
        """Returns the most likely action of an observation, or of each in a batch.

        A policy with memory treats the observations of successive calls as successive steps. Call :meth:`reset` before
        the first observation of an episode, since it would still remember the episode before.

        Args:
            obs: An observation or a batch of them: a list, an array, or what a vector environment returns.
            deterministic: If false, draws the actions from the policy.
            action_mask: 1 for legal actions, else 0.
        """
        single = self._is_single(obs)
        logits: NDArray[Any]
        logits, memory = self._step([obs] if single else obs)
        if action_mask is not None:
            check_unmasked("`action_mask`", action_mask)
            mask = np.atleast_2d(action_mask)
            if mask.dtype.kind not in NUMBERS:
                raise ValueError(f"`action_mask` has the type {mask.dtype}, but must be 1 for legal actions, else 0")
            if mask.shape != logits.shape:
                raise ValueError(f"`action_mask` has shape {mask.shape}, but must have shape {logits.shape}")
            if not (mask > 0).any(axis=1).all():
                raise ValueError("`action_mask` allows no action")
            logits = np.where(mask > 0, logits, -np.inf)
        if not deterministic:
            # The maximum of logits with Gumbel noise is a draw from their softmax.
            logits = logits + self._rng.gumbel(size=logits.shape)
        actions: Any = logits.argmax(axis=1)
        # A call that is refused leaves the memory as it was.
        self._memory = memory
        if self._encoding is not None:
            return self._encoding.decode(int(actions[0]) if single else actions)
        return actions[0] if single else actions

    def reset(self, started: NDArray[np.bool_] | Sequence[bool] | None = None) -> None:
        """Clears the memory of all environments, or of those whose episode starts.

        To be called before the policy acts on the first observation of an episode. Vector environments return that
        with the end of the last episode if ``autoreset_mode`` is ``SAME_STEP``, one step later with ``NEXT_STEP``.

        Args:
            started: Whether an episode of each environment starts with the next observation, ``[num_envs]``.

        Raises:
            ValueError: If it is not a vector of truth values, one for each environment of the last call.
        """
        if started is None:
            self._memory = np.empty((0, self._fresh.size), np.float32)
            return
        check_unmasked("`started`", started)
        started = np.asarray(started)
        if started.dtype != np.bool_ or started.ndim != 1 or len(self._memory) not in (0, len(started)):
            count = len(self._memory) or "as many as there are environments"
            raise ValueError(
                f"`started` has shape {started.shape} and type {started.dtype}, but must be a vector of truth values, "
                f"{count}"
            )
        # Before the first call there is nothing to forget.
        if len(self._memory) > 0:
            self._memory[started] = self._fresh

    def _is_single(self, obs: Any) -> bool:
        if self._encoding is not None:
            return self._encoding.is_single(obs)
        return np.ndim(obs) == 1


def _spaces_file(path: Path) -> Path | None:
    """Finds the file that describes the spaces of a policy in the folder of its run, which the path is or is in."""
    path = path.resolve()
    # A file of weights in a checkpoint is three levels below the run.
    for folder in [path, *path.parents][:4]:
        if (folder / SPACES).is_file():
            return folder / SPACES
        if (folder / "run.json").is_file():
            return None
    return None
