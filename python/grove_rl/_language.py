"""Language models, and prompts as they take them."""

from __future__ import annotations

import json
import os
import reprlib
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, Literal, TypedDict, TypeGuard, Unpack, overload

import numpy as np

from . import _native
from ._settings import Integer, Real, check_integer, check_number
from ._threads import use_threads

Messages = Sequence[Mapping[str, Any]]


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
        if not isinstance(prompts, str) and not is_list(prompts):
            raise ValueError(f"`prompts` is {reprlib.repr(prompts)}, but must be a string or a conversation, or a list of either")
        single = isinstance(prompts, str)
        batch: list[Any] = [prompts] if single else list(prompts)
        if batch and isinstance(batch[0], Mapping):
            single, batch = True, [batch]
        pairs = [(text, json.dumps(messages)) for text, messages in map(parse_prompt, batch)]
        stop = () if stop is None else stop
        stops = [stop] if isinstance(stop, str) or not isinstance(stop, Iterable) else list(stop)
        if not all(isinstance(text, str) for text in stops):
            raise ValueError(f"`stop` is {reprlib.repr(stop)}, but must be a string or a list of strings")
        given = {"chat_template_kwargs": chat_template_kwargs, "tools": tools}
        values: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        for name, value in values.items():
            if any(text for text, _ in pairs):
                raise ValueError(f"`{name}` is for conversations, but a prompt is a string, which has no chat template")
            values[name] = json.loads(to_json(f"`{name}` is {reprlib.repr(value)}, which is not JSON", value))
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


def is_list(value: Any) -> TypeGuard[Iterable[Any]]:
    """Whether iterating over a value yields its items in order, unlike a dict (its keys) or a table (its column names)."""
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping | Set) and not is_table(value)


def is_table(value: Any) -> bool:
    """Whether a value is a table of pandas, Polars or Arrow."""
    return hasattr(value, "columns")


def to_json(problem: str, value: Any) -> str:
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


def parse_prompt(prompt: str | Messages) -> tuple[str, list[dict[str, Any]]]:
    """Returns a prompt as text and as messages; one of them is empty."""
    if isinstance(prompt, str):
        to_json(f"the prompt {reprlib.repr(prompt)} is not Unicode", prompt)
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
        json.loads(to_json(f"the message {reprlib.repr(dict(message))} of a prompt is not JSON", dict(message)))
        for message in messages
    ]
    return "", plain
