"""Training, of policies and of language models."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium

from . import _native
from ._batch import Batch, EnvFn, ProcessBatch
from ._language import PromptLike, RewardFn, text_request
from ._policy import Policy
from ._spaces import SPACES

Callback = Callable[[dict[str, Any]], Any]

#: Steps of an episode of an environment that names no limit.
_MAX_STEPS = 1000

#: Environments of Python by default: few, since they are slow, in groups large enough that one of them succeeds early,
#: and several epochs, which cost little beside the steps.
_ROLLOUT = {"num_groups": 2, "group_size": 32}
_UPDATE = {"update_epochs": 10}


@dataclass
class Report:
    """The result of a run."""

    #: Folder of the run.
    run: str
    #: Mean score of the best policy over fresh episodes, its most likely actions taken.
    mean_score: float
    #: Seconds of training.
    seconds: float
    #: Steps of all episodes; of language models, tokens.
    env_steps: int
    #: Everything that the program reports.
    details: dict[str, Any] = field(repr=False)
    #: Space of the observations of environments of Python.
    observation_space: gymnasium.Space[Any] | None = field(default=None, repr=False)

    def policy(self) -> Policy:
        """Loads the best policy."""
        return Policy(self.run, self.observation_space)


def train(
    what: str | gymnasium.Env[Any, Any] | EnvFn | Sequence[EnvFn] | None = None,
    *,
    task: Iterable[PromptLike] | None = None,
    reward: RewardFn | Sequence[RewardFn] | None = None,
    model: str | os.PathLike[str] = "tiny",
    reward_weights: Sequence[float] | None = None,
    eval_task: Iterable[PromptLike] | None = None,
    device: str | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    callback: Callback | None = None,
    num_processes: int = 0,
    max_episode_steps: int | None = None,
    **settings: Any,
) -> Report:
    """Trains a policy by GRPO, or a language model if ``task`` is given.

    Ctrl-C ends a run after the iteration under way; its folder then holds what it has learnt.

    Args:
        what: A name of :func:`grove_rl.games`; or the id of an environment of Gymnasium; or a function that makes
            an environment, or a list of such functions. A level is ``reset(seed=...)``, and the environments of a
            group share it. Observations are flattened; actions are ``Discrete`` or ``MultiDiscrete``.
        task: Prompts of a language model: strings, conversations (lists of messages), or dicts with ``prompt`` and
            further columns.
        reward: Functions of ``(prompts, completions, **columns)`` that return a number for each completion, or
            ``None`` for one that they do not judge.
        model: A language model's folder or file, or ``tiny`` for a fresh one.
        reward_weights: A weight for each of the reward functions.
        eval_task: Held-out prompts; a tenth of ``task`` if none are given.
        device: ``auto``, ``cpu``, ``wgpu:0``, ``cuda:0`` and so on; by default ``auto`` for built-in games and the
            CPU otherwise.
        run_dir: A new folder; by default the next free one in ``runs``.
        callback: A function that takes every iteration's record, as in ``metrics.jsonl``. If it returns ``False``
            the run stops.
        num_processes: Processes that step environments of Python; 0 for none but this one.
        max_episode_steps: Steps after which an episode is truncated; by default the environment's own limit.
        **settings: Settings as in a settings file: ``iterations=100``, ``rollout={"num_groups": 8}``. A name
            without its section will do where it is unambiguous: ``learning_rate=1e-3``.

    Returns:
        The result.
    """
    listener = None if callback is None else lambda record: callback(json.loads(record))
    changes = _sections(settings)
    if task is not None:
        if reward is None:
            raise ValueError("a language model needs `reward`, a function or a list of them")
        functions = [reward] if callable(reward) else list(reward)
        request, judge = text_request(task, eval_task, functions, reward_weights)
        arguments = (os.fspath(model), json.dumps(changes), device or "cpu", run_dir, listener)
        return _report(_native.train_text(json.dumps(request), judge, *arguments))
    if what is None:
        raise ValueError("name a game or give an environment, or prompts as `task`")
    if isinstance(what, str) and what in _native.names():
        text = json.dumps(changes)
        return _report(_native.train(what, text, device or "auto", run_dir, listener))
    return _train_envs(what, changes, device, run_dir, listener, num_processes, max_episode_steps)


def _train_envs(
    what: Any,
    changes: dict[str, Any],
    device: str | None,
    run_dir: str | os.PathLike[str] | None,
    listener: Callable[[str], Any] | None,
    num_processes: int,
    max_episode_steps: int | None,
) -> Report:
    if isinstance(what, str):
        name = what
        env_fns: list[EnvFn] = [lambda: gymnasium.make(name, disable_env_checker=True)]
    elif isinstance(what, gymnasium.Env):
        raise ValueError("give a function that makes the environment: many of them are played at once")
    else:
        env_fns = [what] if callable(what) else list(what)
    probe = env_fns[0]()
    spec = probe.spec
    limit = max_episode_steps or (spec.max_episode_steps if spec else None) or _MAX_STEPS
    observation_space = probe.observation_space
    probe.close()
    rollout = changes["rollout"] = _ROLLOUT | changes.get("rollout", {})
    changes["update"] = _UPDATE | changes.get("update", {})
    rollout.setdefault("num_steps", limit)
    rollout.setdefault("learn_steps", rollout["num_steps"])
    count = rollout["num_groups"] * rollout["group_size"]
    if len(env_fns) not in (1, count):
        raise ValueError(
            f"{len(env_fns)} functions were given, but a rollout has {count} environments "
            "(num_groups * group_size); give as many, or one for all"
        )
    if len(env_fns) == 1:
        env_fns = env_fns * count
    batch = ProcessBatch(env_fns, num_processes) if num_processes > 0 else Batch(env_fns)
    changes["host"] = {
        "num_features": batch.num_features,
        "num_actions": batch.num_actions,
        "max_steps": limit,
    }
    name = (spec.id if spec else "host").split("/")[-1].lower()
    arguments = (batch, name, json.dumps(changes), device or "cpu", run_dir, listener)
    try:
        report = _report(_native.train_envs(*arguments))
    finally:
        encoding = batch.encoding
        batch.close()
    Path(report.run, SPACES).write_text(json.dumps(encoding.save()))
    report.observation_space = observation_space
    return report


def _report(text: str) -> Report:
    details = json.loads(text)
    return Report(
        run=details["run"],
        mean_score=details.get("mean_score", float("nan")),
        seconds=details["seconds"],
        env_steps=details["env_steps"],
        details=details,
    )


#: Sections of settings whose members are known by their own names.
_SECTIONS = {
    "rollout": ["num_groups", "group_size", "num_steps", "learn_steps", "start", "auto_reset"],
    "advantage": ["estimator", "discount", "scale_rewards"],
    "loss": ["entropy_coef", "kl_coef", "loss_type"],
    "update": ["update_epochs", "num_minibatches", "max_grad_norm"],
    "optimizer": ["learning_rate", "lr_scheduler_type", "warmup_ratio", "weight_decay"],
    "checkpoint": ["eval_every", "eval_episodes", "save_every"],
    "generation": ["num_prompts", "max_new_tokens", "temperature"],
}


def _sections(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Puts settings that are named without their section into it."""
    homes = {name: section for section, names in _SECTIONS.items() for name in names}
    changes: dict[str, Any] = {}
    for name, value in settings.items():
        if name in homes:
            changes.setdefault(homes[name], {})[name] = value
        elif isinstance(value, Mapping):
            changes.setdefault(name, {}).update(value)
        else:
            changes[name] = value
    return changes
