"""The program, and brief runs of a language model, for several files of tests."""

import sys
from typing import Any

PROGRAM = [sys.executable, "-c", "import grove_rl._program as p; raise SystemExit(p.main())"]
#: The program as it starts itself again.
MODULE = [sys.executable, "-P", "-m", "grove_rl._program"]

TASK = [{"prompt": f"{i}>", "solution": "ab"} for i in range(4)]
SPLIT = [{"prompt": "1>", "split": "train"}, {"prompt": "2>", "split": "test"}]
BRIEF: dict[str, Any] = {
    "iterations": 1,
    "fit": {"iterations": 0},
    "generation": {"num_prompts": 2, "group_size": 2, "max_new_tokens": 2},
    "eval_episodes": 2,
}


def one(completions: list[str], **_: Any) -> list[float]:
    """Rewards everything."""
    return [1.0] * len(completions)


def unjudged(completions: list[str], **_: Any) -> list[None]:
    """Judges nothing."""
    return [None] * len(completions)


class Table:
    """The common interface of tables of pandas, Polars and Arrow."""

    columns = ("prompt", "solution")

    def __iter__(self) -> Any:
        return iter(self.columns)
