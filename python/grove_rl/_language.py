"""Language models: generation, and prompts and reward functions for their training."""

from __future__ import annotations

import inspect
import json
import math
import os
import reprlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from itertools import count
from typing import Any, Literal, TypedDict, TypeGuard, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from . import _native
from ._settings import MAX_REWARD, Integer, Real, check_integer, check_number
from ._threads import called, use_threads

Messages = Sequence[Mapping[str, Any]]
PromptLike = str | Messages | Mapping[str, Any]
RewardFn = Callable[..., Iterable[float | None]]

#: Arguments of reward functions besides the columns of the prompts.
_ARGUMENTS = ("prompts", "completions")
#: Further arguments of TRL's reward functions.
_NOT_PROVIDED = ("completion_ids", "trainer_state", "log_extra", "log_metric", "environments")


class _Options(TypedDict, total=False):
    """The arguments of :meth:`LanguageModel.generate` that do not change the type of its result."""

    max_new_tokens: Integer
    temperature: Real
    top_k: Integer
    top_p: Real
    min_p: Real
    seed: Integer
    stop: str | Sequence[str] | None
    chat_template_kwargs: Mapping[str, Any] | None
    tools: Sequence[Mapping[str, Any]] | None


class LanguageModel:
    """A language model on the CPU.

    >>> model = grove_rl.LanguageModel.load("runs/sort-1")
    >>> model.generate("52031844>")
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Loads a model from a Hugging Face folder, a GGUF file, a checkpoint or a run.

        A run is named by its folder, or by its name in ``runs`` without its number; its best model so far is loaded.
        """
        use_threads()
        self._native = _native.LanguageModel(path)
        self._path = os.path.abspath(self._native.path)
        self.num_params = self._native.num_params
        self.context = self._native.context

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LanguageModel:
        """Loads a model from a Hugging Face folder, a GGUF file, a checkpoint or a run.

        A run is named by its folder, or by its name in ``runs`` without its number; its best model so far is loaded.
        """
        return cls(path)

    def __repr__(self) -> str:
        """Names the place of the model and its size."""
        return f"LanguageModel({self._path!r}, num_params={self.num_params})"

    def __getstate__(self) -> dict[str, Any]:
        """Returns the model's path and other attributes for ``pickle`` and ``copy``, without its weights."""
        return {name: value for name, value in self.__dict__.items() if name != "_native"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Takes what :meth:`__getstate__` has returned, and loads the model from its path again.

        Raises:
            ValueError: If there is no model any more.
        """
        use_threads()
        self._native = _native.LanguageModel(state["_path"])
        self.__dict__.update(state)

    @overload
    def generate(  # type: ignore[overload-overlap]  # A string is a sequence of strings, too.
        self, prompts: str | Messages, *, num_completions: Literal[1] = 1, **options: Unpack[_Options]
    ) -> str: ...
    @overload
    def generate(
        self,
        prompts: Iterable[str] | Iterable[Messages],
        *,
        num_completions: Literal[1] = 1,
        **options: Unpack[_Options],
    ) -> list[str]: ...
    @overload
    def generate(
        self,
        prompts: str | Messages | Iterable[str] | Iterable[Messages],
        *,
        num_completions: Integer,
        **options: Unpack[_Options],
    ) -> Any: ...

    def generate(
        self,
        prompts: str | Messages | Iterable[str] | Iterable[Messages],
        *,
        max_new_tokens: Integer = 64,
        temperature: Real = 0.0,
        top_k: Integer = 0,
        top_p: Real = 1.0,
        min_p: Real = 0.0,
        num_completions: Integer = 1,
        seed: Integer = 0,
        stop: str | Sequence[str] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> Any:
        """Completes a prompt, or each of a list of prompts.

        Ctrl-C ends it after the current token.

        Args:
            prompts: A text or a conversation, or a list of either. Conversations need a model with a chat template.
            max_new_tokens: Largest number of tokens of a completion, 0 to 2^20.
            temperature: 0 for the most likely tokens.
            top_k: Number of likeliest tokens to draw from; 0 for all.
            top_p: Cumulative probability of the likeliest tokens to draw from; 1 for all.
            min_p: Least probability of the tokens to draw from, relative to the likeliest one's; 0 for all.
            num_completions: Completions of each prompt, 1 to 4096; if more than 1, each result is a list.
            seed: Seed of the draws, at least 0 and less than 2^64. Those of the first prompt are those of ``grove
                generate``; the others have draws of their own, by their place in the list.
            stop: A text that ends a completion, or several; none by default.
            chat_template_kwargs: Values of the chat template's own variables, for conversations.
            tools: JSON schemas of tools for the chat template, for conversations.

        Returns:
            The completion of one prompt, or a list of those of a list.

        Raises:
            ValueError: If an argument is out of its range, or a prompt and its completion exceed the context.
        """
        if not isinstance(prompts, str) and not _is_list(prompts):
            raise ValueError(f"`prompts` is {reprlib.repr(prompts)}, but must be a string or a conversation, or a list of either")
        single = isinstance(prompts, str)
        batch: list[Any] = [prompts] if single else list(prompts)
        if batch and isinstance(batch[0], Mapping):
            single, batch = True, [batch]
        pairs = [(text, json.dumps(messages)) for text, messages in map(_prompt, batch)]
        stop = () if stop is None else stop
        stops = [stop] if isinstance(stop, str) or not isinstance(stop, Iterable) else list(stop)
        if not all(isinstance(text, str) for text in stops):
            raise ValueError(f"`stop` is {reprlib.repr(stop)}, but must be a string or a list of strings")
        given = {"chat_template_kwargs": chat_template_kwargs, "tools": tools}
        values: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        for name, value in values.items():
            if any(text for text, _ in pairs):
                raise ValueError(f"`{name}` is for conversations, but a prompt is a string, which has no chat template")
            values[name] = json.loads(_json(f"`{name}` is {reprlib.repr(value)}, which is not JSON", value))
        options = {
            "max_new_tokens": check_integer("max_new_tokens", max_new_tokens, 0, 1 << 20),
            "temperature": check_number("temperature", temperature),
            "top_k": check_integer("top_k", top_k, 0, (1 << 32) - 1),
            "top_p": check_number("top_p", top_p),
            "min_p": check_number("min_p", min_p),
            "completions": check_integer("num_completions", num_completions, 1, 4096),
            "seed": check_integer("seed", seed, 0, (1 << 64) - 1),
            "stop": stops,
            **values,
        }
        use_threads()
        results: list[Any] = self._native.generate(pairs, json.dumps(options))
        if num_completions == 1:
            results = [completions[0] for completions in results]
        return results[0] if single else results


def _is_list(value: Any) -> TypeGuard[Iterable[Any]]:
    """Whether iterating over a value yields its items in order, unlike a dict (its keys) or a table (its column names)."""
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping | Set) and not _is_table(value)


def _is_table(value: Any) -> bool:
    """Whether a value is a table of pandas, Polars or Arrow."""
    return hasattr(value, "columns")


def _json(problem: str, value: Any) -> str:
    """Returns a value as JSON; numbers and arrays of NumPy are numbers and lists.

    Raises:
        ValueError: With this problem, if the value is not JSON, or not Unicode.
    """
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, default=_listed)
        text.encode()
        _check_keys(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{problem}: {error}") from error
    return text


def _check_keys(value: Any) -> None:
    """Checks that the keys of dicts are strings, as which JSON would keep them.

    Raises:
        TypeError: If one is not.
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"the key {reprlib.repr(key)} is not a string")
            _check_keys(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _check_keys(item)


def _listed(item: Any) -> Any:
    """Returns a number or an array of NumPy, or of a library like it, as numbers and lists.

    Raises:
        TypeError: If it is neither.
    """
    is_time = isinstance(item, np.ndarray | np.generic) and item.dtype.kind in "mM"
    if is_time or not hasattr(item, "tolist"):
        raise TypeError(f"there is no JSON for the type {type(item).__name__}")
    return item.tolist()


def _prompt(prompt: str | Messages) -> tuple[str, list[dict[str, Any]]]:
    """Returns a prompt as text and as messages; one of them is empty."""
    if isinstance(prompt, str):
        _json(f"the prompt {reprlib.repr(prompt)} is not Unicode", prompt)
        return prompt, []
    if isinstance(prompt, np.ndarray):
        # Rows of tables read from Parquet files contain arrays.
        prompt = prompt.tolist()
    messages = [message for message in prompt if isinstance(message, Mapping)] if isinstance(prompt, Sequence) else []
    if not messages or len(messages) != len(prompt):
        raise ValueError(f"the prompt {reprlib.repr(prompt)} is neither a string nor a list of messages")
    for message in messages:
        # A message of the assistant may only call tools.
        has_content = "content" in message or message.get("role") == "assistant"
        if not isinstance(message.get("role"), str) or not has_content:
            raise ValueError(f"the message {reprlib.repr(message)} of a prompt must have a `role`, a string, and a `content`")
    if messages[-1]["role"] == "assistant":
        raise ValueError(
            f"the prompt {reprlib.repr(prompt)} ends with a message of the assistant, which is not continued; remove it"
        )
    plain = [
        json.loads(_json(f"the message {reprlib.repr(dict(message))} of a prompt is not JSON", dict(message)))
        for message in messages
    ]
    return "", plain


def _columns_as_json(columns: dict[Any, Any]) -> str:
    """Returns the columns of a prompt as JSON.

    Raises:
        ValueError: If one of them is not; the message names it.
    """
    try:
        return _json(f"the columns {list(columns)} of a prompt are not JSON", columns)
    except ValueError:
        for name, value in columns.items():
            _json(f"the column `{name}` of a prompt is {reprlib.repr(value)}, which is not JSON", value)
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
    text, messages = _prompt(prompt)
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
            if not _is_list(rewards):
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
    if _is_table(task):
        raise ValueError(
            f"`{name}` is a table, a {type(task).__name__}, but must be a list of prompts: give the rows, in pandas "
            'table.to_dict("records")'
        )
    if isinstance(task, Mapping):
        raise ValueError(
            f"`{name}` is a dict of columns, but must be a list of prompts: give the rows, "
            "[dict(zip(columns, row)) for row in zip(*columns.values())]"
        )
    if not _is_list(task):
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
    functions = [reward] if callable(reward) else list(reward) if _is_list(reward) else []
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
        weights = [float(weight) for weight in given] if _is_list(given) else None
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
