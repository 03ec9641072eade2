"""Observations and actions of Gymnasium as the numbers that policies take and give."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from ._settings import check_unmasked

#: The file of a run's folder that describes the spaces of its environments.
SPACES = "spaces.json"

#: The kinds of arrays of real numbers, by NumPy's letters.
NUMBERS = "biuf"

#: The largest bound by which observations are divided: wider ranges say nothing about usual values.
_WIDEST = 1e4

#: The narrowest bounds by which observations are divided, in units in the last place: of narrower ones rounding to 32
#: bits leaves nothing.
_NARROWEST = 16

#: The most numbers of an observation, and the most actions, that native code takes.
_MOST_FEATURES = 1 << 20
_MOST_ACTIONS = 1 << 16


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
    #: Type of an action, or of the numbers of such a vector.
    dtype: str = "int64"
    #: The space of observations that are not vectors of numbers.
    space: spaces.Space[Any] | None = None
    #: Whether observations are not vectors of numbers while their space is unknown: they must then be given as vectors.
    lacks_space: bool = False

    def __post_init__(self) -> None:
        self._type = np.dtype(self.dtype).type

    @classmethod
    def of(cls, space: spaces.Space[Any], action: spaces.Space[Any]) -> Encoding:
        """Makes the encoding of the observations of a space and of the actions of another.

        Raises:
            ValueError: If observations cannot be flattened, actions are neither ``Discrete`` nor ``MultiDiscrete``,
                or an observation or the actions are too many numbers or too few.
        """
        center, scale = _scaling(space)
        sizes: tuple[int, ...]
        first: tuple[int, ...]
        dtype = np.dtype(action.dtype or np.int64)
        if isinstance(action, spaces.Discrete):
            sizes, first, multi = (int(action.n),), (int(action.start),), False
        elif isinstance(action, spaces.MultiDiscrete) and action.nvec.ndim == 1:
            sizes, multi = tuple(int(n) for n in action.nvec), True
            first = tuple(int(n) for n in action.start)
        else:
            raise ValueError(f"actions of {action} are neither Discrete nor a MultiDiscrete of one dimension")
        encoding = cls(center, scale, sizes, first, multi, dtype.name, None if is_vector(space) else space)
        if not 2 <= encoding.num_actions <= _MOST_ACTIONS:
            raise ValueError(
                f"the action space {action} has {encoding.num_actions} actions, all combinations counted, but must "
                f"have 2 to {_MOST_ACTIONS}"
            )
        return encoding

    @property
    def num_features(self) -> int:
        """Numbers of an encoded observation."""
        return self.center.size

    @property
    def num_actions(self) -> int:
        """Actions, all combinations counted."""
        return math.prod(self.actions)

    def flatten(self, obs: Any) -> NDArray[Any]:
        """Returns an observation as a vector, ``[num_features]``, before it is scaled.

        Raises:
            ValueError: If its shape or type does not fit the space.
        """
        space = self.space
        check_unmasked("the observation", obs)
        if space is not None and space.shape is not None and np.shape(obs) != space.shape:
            raise ValueError(f"the observation has shape {np.shape(obs)}, but must have shape {space.shape}")
        try:
            if space is None:
                flat = np.asarray(obs)
            elif _is_outside(space, obs):
                raise ValueError("a number is out of range")
            else:
                flat = _flattened(space, obs)
        except Exception as error:
            what = "is not an array" if space is None else f"does not fit {space}"
            raise ValueError(
                f"the observation {reprlib.repr(obs)} {what} ({type(error).__name__}: {error}){self._hint()}"
            ) from error
        if flat.shape != self.center.shape:
            raise ValueError(
                f"the observation has shape {flat.shape}, but must have shape {self.center.shape}{self._hint()}"
            )
        if flat.dtype.kind not in NUMBERS:
            raise ValueError(f"the observation is {reprlib.repr(obs)}, but must consist of numbers")
        return flat

    def _hint(self) -> str:
        if not self.lacks_space:
            return ""
        return "; for observations that are not vectors the policy needs their space: Policy.load(path, env.observation_space)"

    def scaled(
        self, flat: NDArray[np.float32], out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """Returns flat observations, ``[n, num_features]``, as policies take them."""
        return np.divide(np.subtract(flat, self.center, out=out), self.scale, out=out)

    def encode_batch(self, obs: Any) -> NDArray[np.float32]:
        """Returns observations as policies take them, ``[len(obs), num_features]``."""
        space = self.space
        if space is not None and (size := _batch_size(space, obs)) is not None:
            obs = [_row(space, obs, i) for i in range(size)]
        flat = np.empty((len(obs), self.num_features), np.float32)
        # What is beyond 32 bits becomes infinite, for which callers look.
        with np.errstate(all="ignore"):
            for row, one in zip(flat, obs, strict=True):
                row[:] = self.flatten(one)
            return self.scaled(flat)

    def decode(self, action: Any) -> Any:
        """Returns the action with a number, or those with the numbers of a vector, as the rows of an array."""
        if not self.multi:
            return self._type(action + self.first[0])
        return (np.array(np.unravel_index(action, self.actions)).T + self.first).astype(self.dtype)

    def is_single(self, obs: Any) -> bool:
        """Whether this is one observation, not a batch, by its structure: :meth:`flatten` says what does not fit."""
        if self.space is not None and _batch_size(self.space, obs) is not None:
            return False
        shape = _shape(obs)
        if shape == ():
            # Dicts, and whatever else is not an array.
            return True
        if self.space is not None:
            return _has_form(self.space, obs)
        # Tuples are observations of spaces that are unknown here.
        return isinstance(obs, tuple) and self.lacks_space or shape is not None and len(shape) == 1

    def save(self) -> dict[str, Any]:
        """Returns the encoding as JSON."""
        return {
            "center": self.center.tolist(),
            "scale": self.scale.tolist(),
            "actions": self.actions,
            "first": self.first,
            "multi": self.multi,
            "dtype": self.dtype,
            "vectors": self.space is None,
            "structure": None if self.space is None else _structure(self.space),
        }

    @classmethod
    def load(cls, saved: dict[str, Any], space: spaces.Space[Any] | None = None) -> Encoding:
        """Makes the encoding that :meth:`save` has written; without their ``space`` observations must be flat.

        Raises:
            ValueError: If the observations of the space are others than those of the encoding.
        """
        center, scale = np.array(saved["center"], np.float32), np.array(saved["scale"], np.float32)
        if space is not None:
            own, widths = _scaling(space)
            if own.size != center.size:
                raise ValueError(
                    f"an observation of {space} has {own.size} numbers, but one of the policy has {center.size}"
                )
            # Another computer may round otherwise.
            has_bounds = (np.abs(own - center) + np.abs(widths - scale) <= 1e-4 * scale).all()
            # A vector is what the policy takes without the space, too.
            has_parts = is_vector(space) or _structure(space) == saved.get("structure", _structure(space))
            if not (has_bounds and has_parts):
                what = "scaled" if has_parts else "put together"
                raise ValueError(
                    f"an observation of {space} is {what} otherwise than those of the policy: give the "
                    "`observation_space` of the environment in which it was trained"
                )
        return cls(
            center,
            scale,
            tuple(saved["actions"]),
            tuple(saved["first"]),
            saved["multi"],
            saved.get("dtype", "int64"),
            None if space is None or is_vector(space) else space,
            space is None and not saved.get("vectors", True),
        )


def _scaling(space: spaces.Space[Any]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Returns what is subtracted from the numbers of an observation, and by what they are divided then.

    Raises:
        ValueError: If observations cannot be flattened, or are too many numbers or none.
    """
    try:
        is_flattenable = space.is_np_flattenable
    except NotImplementedError:
        # It is no kind of Gymnasium's.
        is_flattenable = False
    if not is_flattenable:
        raise ValueError(f"observations of {space} cannot be flattened to a vector")
    if not 1 <= spaces.flatdim(space) <= _MOST_FEATURES:
        raise ValueError(
            f"an observation of {space} has {spaces.flatdim(space)} numbers, but must have 1 to {_MOST_FEATURES}"
        )
    flat: Any = spaces.flatten_space(space)
    with np.errstate(all="ignore"):
        low, high = np.float64(flat.low).ravel(), np.float64(flat.high).ravel()
        bounded = (np.abs(low) < _WIDEST) & (np.abs(high) < _WIDEST)
        low, high = np.where(bounded, low, -1.0), np.where(bounded, high, 1.0)
        largest = np.maximum(np.abs(low), np.abs(high)).astype(np.float32)
        bounded = high - low > _NARROWEST * np.spacing(largest)
        low, high = np.where(bounded, low, -1.0), np.where(bounded, high, 1.0)
        return ((high + low) / 2).astype(np.float32), ((high - low) / 2).astype(np.float32)


def _structure(space: spaces.Space[Any]) -> list[Any]:
    """Returns as JSON how an observation is put together: the kinds and sizes of its parts, in their order."""
    # A class of one's own has the kind of Gymnasium's that it is derived from.
    kind = next(base.__name__ for base in type(space).__mro__ if base.__module__.startswith("gymnasium.spaces"))
    if isinstance(space, spaces.Dict):
        return [kind, *([str(key), _structure(part)] for key, part in space.spaces.items())]
    if isinstance(space, spaces.Tuple | spaces.OneOf):
        return [kind, *map(_structure, space.spaces)]
    own = (getattr(space, name, None) for name in ("shape", "n", "nvec", "start", "max_length", "characters"))
    return [kind, *(np.asarray(value).tolist() for value in own if value is not None)]


def is_vector(space: spaces.Space[Any]) -> bool:
    """Whether the observations of a space are vectors of numbers."""
    return isinstance(space, spaces.Box) and len(space.shape) == 1


def _flattened(space: spaces.Space[Any], obs: Any) -> NDArray[Any]:
    """Returns an observation as Gymnasium flattens it, but its numbers as they are.

    Gymnasium would cast them to the type of the space: pictures of 0 to 1 to zeros.

    Raises:
        ValueError: If the shape of a part of the observation is not that of its space.
    """
    if space.shape is not None and np.shape(obs) != space.shape:
        raise ValueError(f"a part has shape {np.shape(obs)}, but must have shape {space.shape}")
    check_unmasked("a part", obs)
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        return np.ravel(obs)
    if isinstance(space, spaces.Dict):
        return np.concatenate([_flattened(part, obs[key]) for key, part in space.spaces.items()])
    if isinstance(space, spaces.Tuple):
        return np.concatenate([_flattened(part, own) for part, own in zip(space.spaces, obs, strict=True)])
    return np.asarray(spaces.flatten(space, obs))


def _is_outside(space: spaces.Space[Any], obs: Any) -> bool:
    """Whether a number of a discrete space is out of range: as an index it may be that of another feature."""
    if isinstance(space, spaces.Dict):
        return any(_is_outside(part, obs[key]) for key, part in space.spaces.items())
    if isinstance(space, spaces.Tuple):
        return any(map(_is_outside, space.spaces, obs))
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        index = np.asarray(obs) - space.start
        size = space.n if isinstance(space, spaces.Discrete) else space.nvec
        return bool(np.any((index < 0) | (index >= size)))
    return False


def _batch_size(space: spaces.Space[Any], obs: Any) -> int | None:
    """Returns the number of observations in a batch of a vector environment, or ``None`` if it is not one."""
    if isinstance(space, spaces.Dict):
        fits = isinstance(obs, Mapping) and space.spaces.keys() <= obs.keys()
        sizes = {_batch_size(part, obs[key]) for key, part in space.spaces.items()} if fits else set()
    elif isinstance(space, spaces.Tuple):
        fits = isinstance(obs, tuple) and len(obs) == len(space)
        sizes = set(map(_batch_size, space.spaces, obs)) if fits else set()
    elif isinstance(space, spaces.Text | spaces.OneOf):
        # There is no array of them.
        kind = str if isinstance(space, spaces.Text) else tuple
        fits = isinstance(obs, tuple) and all(isinstance(own, kind) for own in obs)
        sizes = {len(obs)} if fits else set()
    else:
        # Arrays of NumPy, PyTorch and others.
        fits = hasattr(obs, "__dlpack__") and obs.ndim > 0 and tuple(obs.shape[1:]) == space.shape
        sizes = {len(obs)} if fits else set()
    return sizes.pop() if len(sizes) == 1 else None


def _row(space: spaces.Space[Any], obs: Any, i: int) -> Any:
    """Returns an observation of a batch of a vector environment."""
    if isinstance(space, spaces.Dict):
        return {key: _row(part, obs[key], i) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_row(part, own, i) for part, own in zip(space.spaces, obs, strict=True))
    return obs[i]


def _shape(obs: Any) -> tuple[int, ...] | None:
    """Returns the shape of an array, or ``None`` for sequences of different shapes."""
    try:
        return np.shape(obs)
    except ValueError:
        return None


def _has_form(space: spaces.Space[Any], obs: Any) -> bool:
    """Whether an observation has the structure of a space, whatever its numbers and their types."""
    if isinstance(space, spaces.Dict):
        return isinstance(obs, Mapping)
    if isinstance(space, spaces.Tuple):
        return isinstance(obs, tuple) and len(obs) == len(space) and all(map(_has_form, space, obs))
    if space.shape is not None:
        return _shape(obs) == space.shape
    return space.contains(obs)
