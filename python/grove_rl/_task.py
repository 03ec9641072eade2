"""Prompts and reward functions for the training of language models."""

from __future__ import annotations

import inspect
import json
import math
import reprlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._language import Messages, is_list, is_table, parse_prompt, to_json
from ._settings import MAX_REWARD
from ._threads import called

PromptLike = str | Messages | Mapping[str, Any]
RewardFn = Callable[..., Iterable[float | None]]

#: Arguments of reward functions besides the columns of the prompts.
_ARGUMENTS = ("prompts", "completions")
#: Further arguments of TRL's reward functions.
_NOT_PROVIDED = ("completion_ids", "trainer_state", "log_extra", "log_metric", "environments")


def _columns_as_json(columns: dict[Any, Any]) -> str:
    """Returns the columns of a prompt as JSON.

    Raises:
        ValueError: If one of them is not; the message names it.
    """
    try:
        return to_json(f"the columns {list(columns)} of a prompt are not JSON", columns)
    except ValueError:
        for name, value in columns.items():
            to_json(f"the column `{name}` of a prompt is {reprlib.repr(value)}, which is not JSON", value)
        raise


def _record(item: PromptLike) -> dict[str, Any]:
    """Converts an item of a task to the native code's format."""
    columns = dict(item) if isinstance(item, Mapping) else {"prompt": item}
    if "prompt" not in columns:
        raise ValueError(f"a prompt has the columns {list(columns)}, but none named `prompt`")
    for name in _ARGUMENTS:
        if name in columns:
            raise ValueError(f"a prompt has a column `{name}`, as reward functions call an argument of theirs; rename it")
    prompt = columns.pop("prompt")
    text_of_columns = _columns_as_json(columns)
    columns = json.loads(text_of_columns)
    text, messages = parse_prompt(prompt)
    # As a string, since native code has no whole numbers beyond 64 bits.
    fields = {"prompt": messages or prompt, "columns": text_of_columns}
    solution = columns.get("solution")
    if isinstance(solution, int | float) and not isinstance(solution, bool):
        # Learnt as text, like a solution in a file of prompts.
        solution = json.dumps(solution)
    if isinstance(solution, str):
        fields["solution"] = solution
    # Inputs of the chat template besides the messages, as in TRL.
    values = {name: columns[name] for name in ("chat_template_kwargs", "tools") if messages and name in columns}
    return {"text": text, "messages": messages, "fields": fields, **values}


class Judge:
    """Adapter through which native code calls the reward functions of a run."""

    def __init__(self, functions: Sequence[RewardFn], columns: Set[str]) -> None:
        """Makes the adapter of functions that get these columns in every call, ``None`` where a prompt has none."""
        given = [getattr(function, "__name__", None) for function in functions]
        names = [name if isinstance(name, str) else "reward" for name in given]
        #: A name for each function, no two of them equal.
        self.names: list[str] = []
        for i, name in enumerate(names):
            free = (own for n in count(i) if (own := f"{name}_{n}") not in names + self.names)
            self.names.append(name if names.count(name) == 1 else next(free))
        self._functions = functions
        self._columns = columns
        #: The exception that a function has raised.
        self.error: BaseException | None = None

    def __call__(self, completions: list[str], prompts: list[str]) -> list[list[float | None]]:
        """Returns the parts of each completion's reward; prompts are JSON."""
        try:
            with called():
                return self._judge(completions, prompts)
        except BaseException as error:
            self.error = error
            raise

    def _judge(self, completions: list[str], prompts: list[str]) -> list[list[float | None]]:
        fields = [json.loads(prompt)["fields"] for prompt in prompts]
        given = [field["prompt"] for field in fields]
        rows = [json.loads(field["columns"]) for field in fields]
        columns = {key: [row.get(key) for row in rows] for key in self._columns}
        # Completions of conversations are conversations as well, as in TRL.
        answers = [
            text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
            for text, prompt in zip(completions, given, strict=True)
        ]
        parts = []
        for name, function in zip(self.names, self._functions, strict=True):
            # Lists of its own: a function may change them.
            own = {key: list(values) for key, values in columns.items()}
            rewards = function(prompts=list(given), completions=list(answers), **own)
            if not is_list(rewards):
                raise ValueError(f"{name} returned {reprlib.repr(rewards)}, but must return a list: a reward for each completion")
            rewards = list(rewards)
            if len(rewards) != len(completions):
                raise ValueError(
                    f"{name} returned {len(rewards)} rewards for {len(completions)} completions"
                )
            parts.append([_number(name, reward) for reward in rewards])
        return [list(row) for row in zip(*parts, strict=True)]


def is_async(function: Any) -> bool:
    """Whether a function, or an object that is called like one, must be awaited."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))


def _requires(function: Callable[..., Any], name: str) -> bool:
    """Whether a function has a parameter without a default."""
    try:
        parameter = inspect.signature(function).parameters.get(name)
    except (TypeError, ValueError):
        return False
    return parameter is not None and parameter.default is parameter.empty


def _number(name: str, reward: Any) -> float | None:
    """Returns a reward of a function as a number, or ``None`` where it does not judge."""
    if reward is None:
        return None
    try:
        number = math.nan if isinstance(reward, str | bytes | np.timedelta64) else float(reward)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not abs(number) <= MAX_REWARD:
        raise ValueError(
            f"{name} returned the reward {reward!r}, but must return a finite number, at most {MAX_REWARD:g} in size, "
            "or None for a completion that it does not judge"
        )
    return number


def _records(name: str, task: Iterable[PromptLike]) -> list[dict[str, Any]]:
    """Returns the items of an argument as the library takes them."""
    if is_table(task):
        raise ValueError(
            f"`{name}` is a table, a {type(task).__name__}, but must be a list of prompts: give the rows, in pandas "
            'table.to_dict("records")'
        )
    if isinstance(task, Mapping):
        raise ValueError(
            f"`{name}` is a dict of columns, but must be a list of prompts: give the rows, "
            "[dict(zip(columns, row)) for row in zip(*columns.values())]"
        )
    if not is_list(task):
        raise ValueError(f"`{name}` is {reprlib.repr(task)}, but must be a list of prompts")
    records = [_record(item) for item in task]
    if not records:
        raise ValueError(f"`{name}` is empty, but must have a prompt or more")
    return records


def _splits(
    task: Iterable[PromptLike], eval_task: Iterable[PromptLike] | None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the prompts to train on and the held-out ones: those of ``eval_task``, or by the column ``split``.

    Of the prompts without either the last tenth is held out. Copies of a prompt are in the same split.

    Raises:
        ValueError: If a prompt would be in both splits, or one of them is empty.
    """
    records = [(f"`task[{i}]`", "train", record) for i, record in enumerate(_records("task", task))]
    if eval_task is not None:
        held_out = enumerate(_records("eval_task", eval_task))
        records += [(f"`eval_task[{i}]`", "test", record) for i, record in held_out]
    # What the model sees: a chat template also prints tools.
    seen = ("text", "messages", "chat_template_kwargs", "tools")
    keys = [json.dumps([record.get(name) for name in seen], sort_keys=True) for _, _, record in records]
    #: The split of a prompt that has one, and the place that gives it first.
    known: dict[str, tuple[str, str]] = {}
    for key, (place, by_argument, record) in zip(keys, records, strict=True):
        split = json.loads(record["fields"]["columns"]).get("split")
        if split not in (None, "train", "test"):
            raise ValueError(f'the column `split` of {place} is {split!r}, but must be "train" or "test"')
        if eval_task is not None and split not in (None, by_argument):
            raise ValueError(
                f"the column `split` of {place} is {split!r}, but with `eval_task` its split is {by_argument!r}"
            )
        split = split if eval_task is None else by_argument
        if split is None:
            continue
        other, first = known.setdefault(key, (split, place))
        if other != split:
            raise ValueError(f"{place}: the same prompt is in the split `{other}` at {first}; no prompt may be in both")
    others = [key for key in dict.fromkeys(keys) if key not in known]
    # At least one of each split, if there are two.
    num_held_out = max(1, len(others) // 10) if len(others) > 1 else 0
    tested = {key for key, (split, _) in known.items() if split == "test"} | set(others[len(others) - num_held_out :])
    train = [record for key, (_, _, record) in zip(keys, records, strict=True) if key not in tested]
    test = [record for key, (_, _, record) in zip(keys, records, strict=True) if key in tested]
    if not known and not test:
        warnings.warn("`task` has a single prompt, so that the model is also evaluated on it", stacklevel=4)
        test = train
    for name, split in ("train", train), ("test", test):
        if not split:
            raise ValueError(f"no prompt is in the split `{name}`; mark some with it, or leave the column `split` out")
    return train, test


def text_request(
    task: Iterable[PromptLike],
    eval_task: Iterable[PromptLike] | None,
    reward: RewardFn | Sequence[RewardFn] | None,
    weights: Sequence[float] | NDArray[Any] | None,
) -> tuple[dict[str, Any], Judge]:
    """Returns a task's prompts and reward parts, and the judge of its completions."""
    functions = [reward] if callable(reward) else list(reward) if is_list(reward) else []
    if not functions or not all(callable(function) for function in functions):
        raise ValueError(
            f"`reward` is {reward!r}, but a language model needs a function or a list of one or more of them"
        )
    for function in functions:
        if is_async(function):
            raise ValueError(f"`reward` has the async function {function!r}, but nothing awaits it: give one that is not")
    train, test = _splits(task, eval_task)
    columns = {name for record in train + test for name in json.loads(record["fields"]["columns"])}
    for function in functions:
        for name in _NOT_PROVIDED:
            if _requires(function, name) and name not in columns:
                raise ValueError(f"`reward` has {function!r}, which requires `{name}`, but nothing provides it")
    try:
        given = [1.0] * len(functions) if weights is None else weights
        weights = [float(weight) for weight in given] if is_list(given) else None
    except (TypeError, ValueError):
        weights = None
    if weights is None:
        raise ValueError(f"`reward_weights` is {given!r}, but must be a list of numbers")
    if len(weights) != len(functions):
        raise ValueError(f"{len(weights)} weights were given for {len(functions)} reward functions")
    if not all(abs(weight) <= MAX_REWARD for weight in weights):
        raise ValueError(f"`reward_weights` is {weights}, but must be finite numbers, at most {MAX_REWARD:g} in size")
    judge = Judge(functions, columns)
    texts = [record["text"] + record["fields"].get("solution", "") for record in train + test]
    solutions = [record["fields"]["solution"] for record in train + test if "solution" in record["fields"]]
    has_solutions = bool(solutions) and len(solutions) == len(train + test)
    # A token may be a character; one more ends the completion.
    longest = max((len(solution) + 1 for solution in solutions), default=0)
    request = {
        "train": train,
        "test": test,
        "parts": [
            {"name": name, "weight": weight} for name, weight in zip(judge.names, weights, strict=True)
        ],
        "alphabet": "".join(sorted(set("".join(texts)))) if has_solutions else None,
        "max_new_tokens": longest if has_solutions else max(longest, 256),
    }
    return request, judge
