"""Settings as native code takes them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

#: Numbers of Python and NumPy.
Integer = int | np.integer[Any]
Real = float | np.integer[Any] | np.floating[Any]

#: Largest size of a reward, of the sum of an episode's, and of a reward's weight: squares of much larger ones
#: overflow, so that nothing would be learnt.
MAX_REWARD = 1e15

#: Names of settings of Python environments, whose defaults differ, with their sections and Grove's own names.
HOST_NAMES = {
    **{
        name: ("rollout", name)
        for name in ("num_groups", "group_size", "num_steps", "learn_steps", "start", "auto_reset")
    },
    "num_generations": ("rollout", "group_size"),
    **{name: ("update", name) for name in ("update_epochs", "num_minibatches", "max_grad_norm")},
    "num_iterations": ("update", "update_epochs"),
}

#: Names that several sections of a language model's settings have, with the one that is meant.
TEXT_NAMES = {"learning_rate": ("optimizer", "learning_rate")}

_RESUME = "the program resumes runs of built-in games: `grove train --resume RUN`"

#: Names that are no settings of :func:`grove_rl.train`, each with the reason.
_NO_SETTINGS = {
    "env": "the first argument names the game or environment",
    "task": "the argument of this name holds the prompts of a language model",
    "host": "it follows from the environment",
    "output_dir": "the argument `run_dir` names the folder of the run",
    "logging_steps": "every iteration is recorded",
    "max_prompt_length": "prompts are never cut",
    "reward_funcs": "the argument `reward` holds the reward functions",
    "train_dataset": "the argument `task` holds the prompts",
    "eval_dataset": "the argument `eval_task` holds the prompts for evaluation",
    "resume": _RESUME,
    "resume_from_checkpoint": _RESUME,
    "init": "a policy begins with new weights, and a language model with those of the argument `model`",
    "threads": "the environment variable RAYON_NUM_THREADS, set before the first run, is their number",
    "verbose": "nothing is printed; `callback=print` prints the records",
    "watch": "the program shows runs: `grove watch RUN`",
    "config": "settings are keyword arguments, and their sections dicts; those of a file are `**tomllib.load(file)`",
}


def as_json(settings: Mapping[str, Any]) -> str:
    """Returns settings as JSON; numbers and arrays of NumPy are numbers and lists.

    Raises:
        ValueError: If a value is not a number, string, truth value, list or section, or is not finite.
    """
    return json.dumps({str(name): _plain(str(name), value) for name, value in settings.items()})


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(f"{name}.{key}", item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind not in "mM":
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(name, item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"`{name}` cannot be {value}: must be a finite number, or None for its default")
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"`{name}` cannot be {value}: must be at least -2^63 and less than 2^63")
    if isinstance(value, bool | int | float | str):
        return value
    raise ValueError(
        f"`{name}` cannot be {value!r}: must be a number, a string, true or false, or a list or section of them"
    )


def is_integer(value: Any) -> bool:
    """Whether a value is a whole number of Python or NumPy. Its durations, which NumPy counts as such, are none."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool | np.timedelta64)


def check_unmasked(name: str, value: Any) -> None:
    """Checks that no number of a value is masked, of which NumPy would take whatever is below the mask.

    Raises:
        ValueError: If one is.
    """
    # Environments ask this at every step, and NumPy's own look takes ten times as long.
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise ValueError(f"{name} has a masked number: fill it, for instance by `filled(0)`")


def check_integer(name: str, value: Any, minimum: int, maximum: int | None = None) -> int:
    """Returns an argument that is a whole number in a range.

    Raises:
        ValueError: If it is not.
    """
    if not is_integer(value) or value < minimum or maximum is not None and value > maximum:
        limits = f"{minimum} or more" if maximum is None else f"{minimum} to {maximum}"
        raise ValueError(f"`{name}` is {value!r}, but must be a whole number, {limits}")
    return int(value)


def check_number(name: str, value: Any) -> float:
    """Returns an argument that is a finite number.

    Raises:
        ValueError: If it is not.
    """
    is_number = isinstance(value, float | np.floating) or is_integer(value)
    try:
        number = float(value) if is_number else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"`{name}` is {value!r}, but must be a finite number")
    return number


def in_sections(
    settings: Mapping[str, Any], names: Mapping[str, tuple[str, str]]
) -> dict[str, Any]:
    """Puts settings that are named without their section, or by another name, into their place.

    Settings that are ``None``, as TRL's are where they are off or the default, are left out.

    Args:
        settings: Settings and sections of them.
        names: Names of settings, each with its section and its name there.

    Raises:
        ValueError: If a setting is given twice, or is not a setting of a run.
    """
    sections = {section for section, _ in names.values()}
    changes: dict[str, Any] = {}
    for name, value in settings.items():
        if value is None:
            continue
        if name in _NO_SETTINGS:
            raise ValueError(f"`{name}` is not a setting of `train`: {_NO_SETTINGS[name]}")
        if isinstance(value, Mapping):
            section, given = name, value
        elif "." in name:
            section, _, key = name.partition(".")
            given = {key: value}
        elif name in names:
            section, given = names[name][0], {name: value}
        elif name in sections:
            raise ValueError(f"`{name}` cannot be {value!r}: must be a dict of settings")
        else:
            changes[name] = value
            continue
        inner = changes.setdefault(section, {})
        if not isinstance(inner, dict):
            raise ValueError(f"`{section}` cannot be {inner!r}: must be a dict of settings")
        for key, item in given.items():
            if item is None:
                continue
            home, own = names.get(key, (section, key))
            key = own if home == section else key
            if key in inner:
                raise ValueError(f"`{section}.{key}` is given twice: {inner[key]!r} and {item!r}")
            inner[key] = item
    return changes
