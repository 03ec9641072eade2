"""Language models: generation, and prompts and reward functions for their training."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from . import _native
from ._settings import as_json
from ._threads import use_threads

Messages = Sequence[Mapping[str, Any]]
PromptLike = str | Messages | Mapping[str, Any]
RewardFn = Callable[..., Sequence[float | None]]


class LanguageModel:
    """A language model on the CPU."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Loads a model from a folder of Hugging Face's form, a GGUF file or a run."""
        use_threads()
        self._native = _native.LanguageModel(path)
        self.num_params = self._native.num_params
        self.context = self._native.context

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LanguageModel:
        """Loads a model from a folder of Hugging Face's form, a GGUF file or a run."""
        return cls(path)

    def generate(
        self,
        prompts: str | Messages | list[str] | list[Messages],
        *,
        max_new_tokens: int = 64,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        num_completions: int = 1,
        seed: int = 0,
        stop: Sequence[str] = (),
    ) -> Any:
        """Completes a prompt, or each of a list of prompts.

        Args:
            prompts: A text or a conversation, or a list of either.
            max_new_tokens: Largest number of tokens of a completion.
            temperature: 0 for the most likely tokens.
            top_k: Number of likeliest tokens to draw from; 0 for all.
            top_p: Cumulative probability of the likeliest tokens to draw from; 1 for all.
            min_p: Least probability of the tokens to draw from, relative to the likeliest one's; 0 for all.
            num_completions: Completions of each prompt; if more than 1, each result is a list.
            seed: Seed of the draws.
            stop: Texts that end a completion.

        Returns:
            The completion of one prompt, or a list of those of a list.

        Raises:
            ValueError: If an argument is out of its range, or a prompt and its completion exceed the context.
        """
        if not hasattr(prompts, "__len__"):
            raise ValueError(f"`prompts` is {prompts!r}, but must be a text or a conversation, or a list of either")
        single = isinstance(prompts, str) or (
            len(prompts) > 0 and isinstance(prompts[0], Mapping)
        )
        batch: Any = [prompts] if single else prompts
        pairs = [(text, json.dumps(messages)) for text, messages in map(_prompt, batch)]
        options = {
            "max_new_tokens": max_new_tokens,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "completions": num_completions,
            "seed": seed,
            "stop": list(stop),
        }
        use_threads()
        results: list[Any] = self._native.generate(pairs, as_json(options))
        if num_completions == 1:
            results = [completions[0] for completions in results]
        return results[0] if single else results


def _prompt(prompt: str | Messages) -> tuple[str, list[dict[str, Any]]]:
    """Returns a prompt as text and as messages; one of them is empty."""
    if isinstance(prompt, str):
        return prompt, []
    messages = [message for message in prompt if isinstance(message, Mapping)] if isinstance(prompt, Sequence) else []
    if not messages or len(messages) != len(prompt):
        raise ValueError(f"the prompt {prompt!r} is neither a text nor a list of messages")
    return "", [dict(message) for message in messages]


def _record(item: PromptLike) -> dict[str, Any]:
    """Returns an item of a task as the library takes it."""
    columns = dict(item) if isinstance(item, Mapping) else {"prompt": item}
    if "prompt" not in columns:
        raise ValueError(f"a prompt has the columns {sorted(columns)}, but none named `prompt`")
    prompt = columns.pop("prompt")
    try:
        columns = json.loads(json.dumps(columns, allow_nan=False, default=lambda value: value.tolist()))
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"the columns {columns} of a prompt are no JSON: {error}") from error
    text, messages = _prompt(prompt)
    fields = {"prompt": prompt, "columns": columns}
    if isinstance(columns.get("solution"), str):
        fields["solution"] = columns["solution"]
    return {"text": text, "messages": messages, "fields": fields}


class Judge:
    """The reward functions of a run, as native code calls them."""

    def __init__(self, functions: Sequence[RewardFn]) -> None:
        names = [getattr(function, "__name__", "reward") for function in functions]
        self.names = [name if names.count(name) == 1 else f"{name}_{i}" for i, name in enumerate(names)]
        self._functions = functions
        #: The exception that a function has raised.
        self.error: BaseException | None = None

    def __call__(self, completions: list[str], prompts: list[str]) -> list[list[float | None]]:
        """Returns the parts of each completion's reward; prompts are JSON."""
        try:
            return self._judge(completions, prompts)
        except BaseException as error:
            self.error = error
            raise

    def _judge(self, completions: list[str], prompts: list[str]) -> list[list[float | None]]:
        fields = [json.loads(prompt)["fields"] for prompt in prompts]
        given = [field["prompt"] for field in fields]
        keys = {key for field in fields for key in field["columns"]}
        columns = {key: [field["columns"].get(key) for field in fields] for key in keys}
        # Completions of conversations are conversations as well, as in TRL.
        answers = [
            text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
            for text, prompt in zip(completions, given, strict=True)
        ]
        parts = []
        for name, function in zip(self.names, self._functions, strict=True):
            rewards = function(prompts=given, completions=answers, **columns)
            if not isinstance(rewards, Iterable):
                raise ValueError(f"{name} returned {rewards!r}, but must return a list: a reward for each completion")
            rewards = list(rewards)
            if len(rewards) != len(completions):
                raise ValueError(
                    f"{name} returned {len(rewards)} rewards for {len(completions)} completions"
                )
            parts.append([_number(name, reward) for reward in rewards])
        return [list(row) for row in zip(*parts, strict=True)]


def _number(name: str, reward: Any) -> float | None:
    """Returns a reward of a function as a number, or ``None`` where it does not judge."""
    if reward is None:
        return None
    try:
        number = math.nan if isinstance(reward, str | bytes) else float(reward)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(
            f"{name} returned the reward {reward!r}, but must return a finite number, or None for a completion that "
            "it does not judge"
        )
    return number


def _records(name: str, task: Iterable[PromptLike]) -> list[dict[str, Any]]:
    """Returns the items of an argument as the library takes them."""
    if isinstance(task, str | Mapping) or not isinstance(task, Iterable):
        raise ValueError(f"`{name}` is {task!r}, but must be a list of prompts")
    return [_record(item) for item in task]


def text_request(
    task: Iterable[PromptLike],
    eval_task: Iterable[PromptLike] | None,
    reward: RewardFn | Sequence[RewardFn] | None,
    weights: Sequence[float] | None,
) -> tuple[dict[str, Any], Judge]:
    """Returns a task's prompts and reward parts, and the judge of its completions."""
    functions = [reward] if callable(reward) else list(reward or [])
    if not functions or not all(callable(function) for function in functions):
        raise ValueError(
            f"`reward` is {reward!r}, but a language model needs a function or a list of one or more of them"
        )
    train = _records("task", task)
    if eval_task is None:
        # At least one of each, if there are two.
        held_out = max(1, len(train) // 10) if len(train) > 1 else 0
        test, train = train[len(train) - held_out :], train[: len(train) - held_out]
        test = test or train
    else:
        test = _records("eval_task", eval_task)
    try:
        weights = [1.0] * len(functions) if weights is None else [float(weight) for weight in weights]
    except (TypeError, ValueError):
        raise ValueError(f"`reward_weights` is {weights!r}, but must be a list of numbers") from None
    if len(weights) != len(functions):
        raise ValueError(f"{len(weights)} weights were given for {len(functions)} reward functions")
    if not all(math.isfinite(weight) for weight in weights):
        raise ValueError(f"`reward_weights` is {weights}, but must be finite numbers")
    judge = Judge(functions)
    texts = [record["text"] + record["fields"].get("solution", "") for record in train + test]
    has_solutions = all("solution" in record["fields"] for record in train + test)
    request = {
        "train": train,
        "test": test,
        "parts": [
            {"name": name, "weight": weight} for name, weight in zip(judge.names, weights, strict=True)
        ],
        "alphabet": "".join(sorted(set("".join(texts)))) if has_solutions else None,
        "max_new_tokens": 64,
    }
    return request, judge
