"""Observations and actions of Gymnasium as the numbers that policies take and give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

#: The file of a run's folder that describes the spaces of its environments.
SPACES = "spaces.json"

#: The largest bound by which observations are divided: wider ranges tell nothing about usual values.
_WIDEST = 1e4


@dataclass
class Encoding:
    """Flattening and scaling of observations, and numbering of actions.

    Bounded dimensions are scaled to [-1, 1]; the others stay as they are. The actions of a ``MultiDiscrete``
    space are numbered in row-major order.
    """

    center: NDArray[np.float32]
    scale: NDArray[np.float32]
    #: Size of each dimension of the action.
    actions: tuple[int, ...]
    #: Smallest value of each dimension of the action.
    first: tuple[int, ...]
    #: Whether actions are vectors.
    multi: bool
    #: The space of observations that are not vectors of numbers.
    space: spaces.Space[Any] | None = None

    @classmethod
    def of(cls, env: gymnasium.Env[Any, Any]) -> Encoding:
        """Makes the encoding of an environment's spaces.

        Raises:
            ValueError: If they are of another kind than described above.
        """
        space, action = env.observation_space, env.action_space
        if not space.is_np_flattenable:
            raise ValueError(f"observations of {space} cannot be flattened to a vector")
        flat = spaces.flatten_space(space)
        low, high = np.float64(flat.low).ravel(), np.float64(flat.high).ravel()
        bounded = (np.abs(low) < _WIDEST) & (np.abs(high) < _WIDEST) & (high > low)
        low, high = np.where(bounded, low, -1.0), np.where(bounded, high, 1.0)
        center = ((high + low) / 2).astype(np.float32)
        scale = ((high - low) / 2).astype(np.float32)
        if isinstance(action, spaces.Discrete):
            sizes, first, multi = (int(action.n),), (int(action.start),), False
        elif isinstance(action, spaces.MultiDiscrete) and action.nvec.ndim == 1:
            sizes, multi = tuple(int(n) for n in action.nvec), True
            first = tuple(int(n) for n in action.start)
        else:
            raise ValueError(f"actions of {action} are none of Discrete and MultiDiscrete")
        return cls(center, scale, sizes, first, multi, None if is_vector(space) else space)

    @property
    def num_features(self) -> int:
        """Numbers of an encoded observation."""
        return self.center.size

    @property
    def num_actions(self) -> int:
        """Actions, all combinations counted."""
        return int(np.prod(self.actions))

    def flatten(self, obs: Any) -> Any:
        """Returns an observation as a vector, ``[num_features]``, before it is scaled."""
        return obs if self.space is None else spaces.flatten(self.space, obs)

    def scaled(
        self, flat: NDArray[np.float32], out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """Returns flat observations, ``[n, num_features]``, as policies take them."""
        return np.divide(np.subtract(flat, self.center, out=out), self.scale, out=out)

    def encode_batch(self, obs: Any) -> NDArray[np.float32]:
        """Returns observations as policies take them, ``[len(obs), num_features]``."""
        return self.scaled(np.stack([np.asarray(self.flatten(one), np.float32) for one in obs]))

    def decode(self, action: int) -> Any:
        """Returns the action with a number."""
        if not self.multi:
            return int(action) + self.first[0]
        return np.array(np.unravel_index(action, self.actions)) + self.first

    def is_single(self, obs: Any) -> bool:
        """Whether this is one observation, not a batch."""
        return self.space is None and np.ndim(obs) == 1 or (
            self.space is not None and self.space.contains(obs)
        )

    def save(self) -> dict[str, Any]:
        """Returns the encoding as JSON."""
        return {
            "center": self.center.tolist(),
            "scale": self.scale.tolist(),
            "actions": self.actions,
            "first": self.first,
            "multi": self.multi,
        }

    @classmethod
    def load(cls, saved: dict[str, Any], space: spaces.Space[Any] | None = None) -> Encoding:
        """Makes the encoding that :meth:`save` has written; without their ``space`` observations must be flat."""
        return cls(
            np.array(saved["center"], np.float32),
            np.array(saved["scale"], np.float32),
            tuple(saved["actions"]),
            tuple(saved["first"]),
            saved["multi"],
            None if space is None or is_vector(space) else space,
        )


def is_vector(space: spaces.Space[Any]) -> bool:
    """Whether the observations of a space are vectors of numbers."""
    return isinstance(space, spaces.Box) and len(space.shape) == 1
