"""Training of policies and language models."""

from __future__ import annotations

import atexit
import copy
import json
import os
import stat
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec, load_env_creator
from numpy.typing import NDArray

from . import _native
from ._batch import Batch, EnvFn, close_all, make_env
from ._policy import Policy
from ._processes import ProcessBatch
from ._settings import HOST_NAMES, TEXT_NAMES, Integer, as_json, check_integer, in_sections
from ._spaces import Encoding
from ._task import PromptLike, RewardFn, is_async, text_request
from ._threads import called, end_runs, use_threads

Callback = Callable[[dict[str, Any]], Any]

#: Maximum number of steps per episode for environments without a limit.
_DEFAULT_MAX_STEPS = 1000
#: The largest maximum.
_LARGEST_MAX_STEPS = 1 << 30

#: Defaults for Python environments: few, since they are slow, in groups large enough that a member succeeds early, and
#: several epochs, which cost little compared with the steps.
_ROLLOUT = {"num_groups": 2, "group_size": 32}
_UPDATE = {"update_epochs": 10}

# Called before what multiprocessing, imported above, has registered, which ends the processes of environments.
atexit.register(end_runs)


@dataclass
class Report:
    """The result of a run."""

    #: Folder of the run.
    run: str
    #: Mean score of the best policy with its most likely actions, over fresh episodes; NaN if there is none, for
    #: instance because no reward function judged a completion.
    mean_score: float
    #: Seconds of training.
    seconds: float
    #: Steps of all episodes; tokens for language models.
    env_steps: int
    #: The complete report, with the keys of the program's JSON output.
    details: dict[str, Any] = field(repr=False)
    #: Observation space of a Python environment.
    observation_space: gymnasium.Space[Any] | None = field(default=None, repr=False)
    #: Folder in which the path of the run begins, if it is relative; empty if there was none.
    base: str = field(default="", repr=False)

    def policy(self) -> Policy:
        """Loads the best policy, also if the current folder is another one by now."""
        return Policy(os.path.join(self.base, self.run), self.observation_space)


def train(
    what: str | gymnasium.Env[Any, Any] | EnvFn | Sequence[EnvFn] | None = None,
    *,
    task: Iterable[PromptLike] | None = None,
    reward: RewardFn | Sequence[RewardFn] | None = None,
    model: str | os.PathLike[str] | None = None,
    reward_weights: Sequence[float] | NDArray[Any] | None = None,
    eval_task: Iterable[PromptLike] | None = None,
    device: str | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    callback: Callback | None = None,
    num_processes: Integer = 0,
    max_episode_steps: Integer | None = None,
    **settings: Any,
) -> Report:
    """Trains a policy by GRPO, or a language model if ``task`` is given.

    >>> report = grove_rl.train("CartPole-v1", iterations=20)
    >>> action = report.policy()(obs)

    Ctrl-C ends the run after the current iteration, with its policy saved; a second Ctrl-C ends it as soon as Python code
    runs. Environments, reward functions and the callback are called on the calling thread. Runs in Python environments or
    with reward functions cannot be resumed. Warnings, such as the onset of a collapse or growing memory, are issued as
    ``UserWarning``. Arguments that do not apply are rejected.

    Args:
        what: A built-in game (:func:`grove_rl.games`), the id of a Gymnasium environment, a function that makes an
            environment, or a list of such functions. The environments of a group are reset with the same
            ``reset(seed=...)``. Observations are flattened; actions are ``Discrete`` or ``MultiDiscrete``.
        task: Prompts of a language model: strings, conversations (lists of messages), or dicts with ``prompt`` and
            further columns. A column ``split`` says ``train``, or ``test`` to hold a prompt out.
        reward: Functions of ``(prompts, completions, **columns)`` that return a number for each completion, or
            ``None`` for one that they do not judge. NaN and numbers beyond 1e15 in size are rejected.
        model: Folder, file or run of a language model; ``tiny`` (the default) is a small new one.
        reward_weights: A weight for each of the reward functions.
        eval_task: Held-out prompts, none of which is in ``task``. By default those whose ``split`` is ``test``, and the
            last tenth of those without a ``split``, at least one.
        device: ``auto``, ``cpu``, ``wgpu:0``, ``cuda:0`` and so on; by default ``auto`` for built-in games and the
            CPU otherwise.
        run_dir: A new folder; by default the next free one in ``runs``.
        callback: A function that receives the record of every iteration, as in ``metrics.jsonl``, with the run's number
            of ``iterations`` and an estimate ``seconds_left``. If it returns ``False``, the run is saved and stopped.
        num_processes: Number of worker processes that step Python environments; 0 to step them in this process. Functions
            that make environments, and the objects that they refer to, must be picklable by ``cloudpickle``.
        max_episode_steps: Steps after which an episode is truncated; by default the environment's own limit, or 1000 if it
            has none. Replaces the limit of an id; environments that a function makes keep a lower limit of their own.
        **settings: Settings as in a settings file: ``iterations=100``, ``rollout={"num_groups": 8}``. The section may
            be omitted where the name is unambiguous: ``learning_rate=1e-3``. ``None`` leaves a setting at its default.

    Returns:
        Scores, duration and folder of the run.

    Raises:
        ValueError: If an argument or setting is invalid; the message names it and its valid values.
    """
    if callback is not None and not callable(callback):
        raise ValueError(f"`callback` is {callback!r}, but must be a function of a record")
    for name, path in (("run_dir", run_dir), ("model", model)):
        if path is not None and (not os.fspath(path) or isinstance(os.fspath(path), bytes)):
            raise ValueError(f"`{name}` is {path!r}, but must name a folder")
        if path is not None and not _is_unicode(os.fspath(path)):
            raise ValueError(f"`{name}` is {path!r}, but must be Unicode")
    if is_async(callback):
        raise ValueError(f"`callback` is the async function {callback!r}, but nothing awaits it")
    # Python shows a warning once, unless it forgets those of earlier runs.
    globals().setdefault("__warningregistry__", {}).clear()
    listener = None if callback is None else partial(_listen, callback)
    base = _current_folder()
    of_text = {"reward": reward, "model": model, "reward_weights": reward_weights, "eval_task": eval_task}
    of_host = {"num_processes": num_processes or None, "max_episode_steps": max_episode_steps}
    if task is not None:
        _refuse({"what": what, **of_host}, "a language model, whose prompts are `task`")
        text = as_json(in_sections(settings, TEXT_NAMES))
        request, judge = text_request(task, eval_task, reward, reward_weights)
        device = "cpu" if device is None else device
        _prepare(device)
        arguments = ("tiny" if model is None else os.fspath(model), text, device, run_dir, listener)
        try:
            return _report(_native.train_text(json.dumps(request), judge, *arguments), base)
        except Exception as error:
            # Native code knows the message alone.
            if judge.error is None or isinstance(judge.error, Exception):
                raise error from judge.error
            raise judge.error from None
    if what is None:
        raise ValueError("name a game or give an environment, or prompts as `task`")
    if isinstance(what, str) and what in _native.names():
        _refuse(of_text | of_host, f"the built-in game {what}")
        text = as_json(in_sections(settings, {}))
        device = "auto" if device is None else device
        _prepare(device)
        return _report(_native.train(what, text, device, run_dir, listener), base)
    _refuse(of_text, "an environment")
    changes = in_sections(settings, HOST_NAMES)
    device = "cpu" if device is None else device
    _prepare(device)
    with called():
        return _train_envs(what, changes, device, run_dir, listener, num_processes, max_episode_steps)


def _current_folder() -> str:
    """Returns the current folder; empty if it has been deleted, since absolute paths still work then."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def _is_unicode(text: str) -> bool:
    try:
        return bool(text.encode())
    except UnicodeEncodeError:
        return False


def _listen(callback: Callback, record: str) -> Any:
    """Gives a record, which is JSON, to a callback."""
    with called():
        return callback(json.loads(record))


def _refuse(arguments: dict[str, Any], what: str) -> None:
    """Refuses arguments that are given although they do not apply."""
    for name, value in arguments.items():
        if value is not None:
            raise ValueError(f"`{name}` is {value!r}, but does not apply to {what}")


def _prepare(device: str) -> None:
    """Prepares this process for a run on a device."""
    use_threads()
    if device != "cpu":
        set_runtime_dir()


def set_runtime_dir() -> None:
    """Sets ``XDG_RUNTIME_DIR`` if it is not set, as the program in Rust does.

    Without it, a layer of Mesa's Vulkan drivers that looks for a Wayland server complains on stderr.
    """
    # To this folder, this user alone writes, or root: the layer connects to a server whose socket it finds.
    if os.name == "posix" and "XDG_RUNTIME_DIR" not in os.environ:
        os.environ["XDG_RUNTIME_DIR"] = _cache_folder() or "/"


def _cache_folder() -> str | None:
    """Returns Grove's folder in the user's cache, made if it is missing, as the program does.

    ``None`` without such a folder, or if another user owns it or may write to it, and could plant files there.
    """
    cache, home = os.environ.get("XDG_CACHE_HOME", ""), os.environ.get("HOME", "")
    if not os.path.isabs(cache):
        cache = os.path.join(home, ".cache")
    if not os.path.isabs(cache):
        return None
    folder = os.path.join(cache, "grove")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        state = os.lstat(folder)
    except OSError:
        return None
    is_ours = stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid() and not state.st_mode & 0o022
    return folder if is_ours else None


def _train_envs(
    what: Any,
    changes: dict[str, Any],
    device: str,
    run_dir: str | os.PathLike[str] | None,
    listener: Callable[[str], Any] | None,
    num_processes: Integer,
    max_episode_steps: Integer | None,
) -> Report:
    """Trains in the environments that `what` makes, after a look at the spaces of one of them."""
    num_processes = check_integer("num_processes", num_processes, 0)
    if max_episode_steps is not None:
        max_episode_steps = check_integer("max_episode_steps", max_episode_steps, 1, _LARGEST_MAX_STEPS)
    # Gymnasium would truncate at the limit with which the id is registered.
    registered = partial(gymnasium.make, max_episode_steps=max_episode_steps, disable_env_checker=True)
    if isinstance(what, str):
        env_fns: list[EnvFn] = [partial(registered, what)]
    elif isinstance(what, gymnasium.Env):
        raise ValueError("give a function that makes the environment: many of them are played at once")
    else:
        env_fns = [what] if callable(what) else list(what) if isinstance(what, Iterable) else []
    if not env_fns or not all(callable(make) for make in env_fns):
        raise ValueError(f"{what!r} must be one or more functions, each of which makes an environment")
    try:
        probe = make_env(env_fns[0])
    except gymnasium.error.NameNotFound as error:
        if not isinstance(what, str):
            raise
        games = ", ".join(_native.names())
        raise gymnasium.error.NameNotFound(f"{error} Nor is it a game of Grove: {games}.") from None
    spec = probe.spec
    environment = spec.id if spec else type(probe.unwrapped).__name__
    limit = min(max_episode_steps or _own_limit(probe) or _DEFAULT_MAX_STEPS, _LARGEST_MAX_STEPS)
    spaces = (probe.observation_space, probe.action_space)
    failure = close_all([probe])
    if failure is not None:
        _warn_of_close(failure)
    if isinstance(what, str) and spec is not None:
        # Another process may not know the id.
        env_fns = [partial(registered, _portable(gymnasium.spec(spec.id)))]
    rollout = changes["rollout"] = _ROLLOUT | changes.get("rollout", {})
    changes["update"] = _UPDATE | changes.get("update", {})
    rollout.setdefault("num_steps", limit)
    rollout.setdefault("learn_steps", rollout["num_steps"])
    for name in (*_ROLLOUT, "num_steps"):
        # Products of NumPy's narrow numbers would wrap around.
        rollout[name] = check_integer(f"rollout.{name}", rollout[name], 1)
    num_envs = rollout["num_groups"] * rollout["group_size"]
    encoding = Encoding.of(*spaces)
    changes["host"] = {
        "num_features": encoding.num_features,
        "num_actions": encoding.num_actions,
        "max_steps": limit,
    }
    # Before the environments are made, which may take minutes.
    _native.check_settings(as_json(changes))
    _check_memory(num_envs, rollout["num_steps"], encoding.num_features)
    if len(env_fns) not in (1, num_envs):
        raise ValueError(
            f"{len(env_fns)} functions were given, but a rollout has {num_envs} environments "
            "(num_groups * group_size); give as many, or one for all"
        )
    if len(env_fns) == 1:
        env_fns = env_fns * num_envs
    name = (spec.id if spec else "host").split("/")[-1].lower()
    batch = ProcessBatch(env_fns, spaces, num_processes) if num_processes > 0 else Batch(env_fns, spaces)
    try:
        arguments = (environment, json.dumps(encoding.save()), as_json(changes), device, run_dir, listener)
        base = _current_folder()
        report = _report(_native.train_envs(batch, name, *arguments), base)
    finally:
        try:
            batch.close()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            # The run is over, and its result or its own exception matters more.
            _warn_of_close(error)
    report.observation_space = spaces[0]
    return report


def _portable(spec: EnvSpec) -> EnvSpec:
    """Returns what another process makes an environment by: what the main script defines is only found in this one."""
    entry = spec.entry_point
    if isinstance(entry, str) and entry.startswith(("__main__:", "__mp_main__:")):
        creator: Any = load_env_creator(entry)
        spec = copy.copy(spec)
        spec.entry_point = creator
    return spec


def _own_limit(env: gymnasium.Env[Any, Any]) -> int | None:
    """Returns the number of steps after which an environment truncates its episodes, if it declares one."""
    if env.spec is not None and env.spec.max_episode_steps is not None:
        return env.spec.max_episode_steps
    # An unregistered environment has no spec, but may be wrapped.
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, gymnasium.wrappers.TimeLimit):
            return env._max_episode_steps
        env = env.env
    return None


def _check_memory(num_envs: int, num_steps: int, num_features: int) -> None:
    """Checks that the observations of a rollout fit in memory; native code would abort the process otherwise."""
    try:
        np.empty((num_envs, num_steps, num_features), np.float32)
    except (MemoryError, ValueError):
        size = 4 * num_envs * num_steps * num_features / 1e9
        raise ValueError(
            f"a rollout of {num_envs} environments, {num_steps} steps and {num_features} numbers an observation needs "
            f"{size:,.0f} GB of memory, more than there is: lower `max_episode_steps`, `num_groups` or `group_size`"
        ) from None


def _warn_of_close(error: BaseException) -> None:
    """Warns the caller of :func:`train` about an exception in an environment's ``close``."""
    warnings.warn(f"an environment failed when it was closed: {error!r}", stacklevel=4)


def _report(text: str, base: str) -> Report:
    details = json.loads(text)
    return Report(
        run=details["run"],
        mean_score=details.get("mean_score", float("nan")),
        seconds=details["seconds"],
        env_steps=details["env_steps"],
        details=details,
        base=base,
    )
