"""Trained policies."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from . import _native
from ._spaces import SPACES, Encoding


class Policy:
    """A policy on the CPU.

    Call it with an observation, or with a batch of them, for the most likely actions. A policy with memory
    remembers its last call; :meth:`reset` makes it forget.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        observation_space: spaces.Space[Any] | None = None,
    ) -> None:
        """Loads the policy of a run, of a checkpoint or of a policy's file.

        Args:
            path: Where it is.
            observation_space: The space of its environment, if observations are to be flattened.
        """
        self._native = _native.Policy(path)
        self.game = self._native.game
        self.iteration = self._native.iteration
        self.num_features = self._native.num_features
        self.num_actions = self._native.num_actions
        self._rng = np.random.default_rng()
        self._fresh = np.array(self._native.initial_memory, np.float32)
        self._memory = np.empty((0, self._fresh.size), np.float32)
        file = Path(path) / SPACES
        self._encoding: Encoding | None = None
        if file.is_file():
            self._encoding = Encoding.load(json.loads(file.read_text()), observation_space)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        observation_space: spaces.Space[Any] | None = None,
    ) -> Policy:
        """Loads the policy of a run, of a checkpoint or of a policy's file; arguments as of the constructor."""
        return cls(path, observation_space)

    def logits(self, obs: Any) -> NDArray[np.float32]:
        """Returns logits, ``[num_envs, num_actions]``, of observations, ``[num_envs, num_features]``."""
        if self._encoding is not None:
            obs = self._encoding.encode_batch(obs)
        obs = np.ascontiguousarray(obs, np.float32)
        if obs.ndim != 2 or obs.shape[1] != self.num_features:
            raise ValueError(f"observations are {obs.shape}, but must be (n, {self.num_features})")
        if len(self._memory) != len(obs):
            self._memory = np.tile(self._fresh, (len(obs), 1))
        logits = np.empty((len(obs), self.num_actions), np.float32)
        self._native.act(obs, self._memory, logits)
        return logits

    def __call__(
        self, obs: Any, *, deterministic: bool = True, action_mask: NDArray[Any] | None = None
    ) -> Any:
        """Returns the most likely action of an observation, or of each in a batch.

        Args:
            obs: An observation or a batch of them.
            deterministic: If false, draws the actions from the policy.
            action_mask: 1 for legal actions, else 0.
        """
        single = self._is_single(obs)
        logits = self.logits([obs] if single else obs)
        if action_mask is not None:
            logits = np.where(np.atleast_2d(action_mask) > 0, logits, -np.inf)
        if not deterministic:
            # The maximum of logits with Gumbel noise is a draw from their softmax.
            logits = logits + self._rng.gumbel(size=logits.shape)
        actions: Any = logits.argmax(axis=1)
        if self._encoding is not None:
            actions = [self._encoding.decode(action) for action in actions]
            return actions[0] if single else np.array(actions)
        return actions[0] if single else actions

    def reset(self, ended: NDArray[np.bool_] | None = None) -> None:
        """Forgets all environments, or those whose episode has ended."""
        if ended is None:
            self._memory = np.empty((0, self._fresh.size), np.float32)
        else:
            self._memory[ended] = self._fresh

    def _is_single(self, obs: Any) -> bool:
        if self._encoding is not None:
            return self._encoding.is_single(obs)
        return np.ndim(obs) == 1
