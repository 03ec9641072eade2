"""The native half of the package; its arrays are contiguous, with the element types named here."""

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Games",
    "LanguageModel",
    "Policy",
    "check_settings",
    "main",
    "names",
    "scalars",
    "train",
    "train_envs",
    "train_text",
]

def names() -> list[str]: ...
def scalars(record: str) -> dict[str, float]: ...
def main(argv: list[str], started_by: list[str]) -> int: ...
def train(
    game: str,
    settings: str,
    device: str,
    run_dir: str | PathLike[str] | None,
    callback: Callable[[str], Any] | None,
) -> str: ...
def check_settings(changes: str) -> None: ...
def train_envs(
    envs: Any,
    name: str,
    environment: str,
    spaces: str,
    changes: str,
    device: str,
    run_dir: str | PathLike[str] | None,
    callback: Callable[[str], Any] | None,
) -> str: ...
def train_text(
    request: str,
    reward: Callable[[list[str], list[str]], list[list[float | None]]],
    model: str,
    settings: str,
    device: str,
    run_dir: str | PathLike[str] | None,
    callback: Callable[[str], Any] | None,
) -> str: ...

@final
class Games:
    num_envs: int
    num_features: int
    num_actions: int
    max_steps: int
    masked: bool
    feature_names: list[str]
    action_names: list[str]
    references: list[tuple[str, float]]
    def __new__(
        cls, name: str, num_envs: int, autoreset: str, seed: int, settings: str
    ) -> Self: ...
    def __deepcopy__(self, _memo: Any) -> Self: ...
    def __reduce__(self) -> tuple[type[Self], tuple[str, int, str, int, str], bytes]: ...
    def __setstate__(self, states: bytes) -> None: ...
    def reset(self, seed: int) -> None: ...
    def reset_env(self, env: int, seed: int, episode: int) -> None: ...
    def observe(self, obs: NDArray[np.float32]) -> None: ...
    def legal(self, mask: NDArray[np.uint8]) -> None: ...
    def step(
        self,
        actions: NDArray[np.int64],
        obs: NDArray[np.float32],
        final_obs: NDArray[np.float32],
        rewards: NDArray[np.float64],
        ends: NDArray[np.uint8],
        scores: NDArray[np.float32],
    ) -> bool: ...
    def step_one(
        self, action: int, obs: NDArray[np.float32]
    ) -> tuple[float, bool, bool, float]: ...

@final
class Policy:
    game: str
    path: Path
    iteration: int
    num_features: int
    num_actions: int
    initial_memory: list[float]
    def __new__(cls, path: str | PathLike[str]) -> Self: ...
    @staticmethod
    def of_file(file: bytes, path: str | PathLike[str]) -> Policy: ...
    def file(self) -> bytes: ...
    def compute_logits(
        self,
        obs: NDArray[np.float32],
        memory: NDArray[np.float32],
        logits: NDArray[np.float32],
    ) -> None: ...

@final
class LanguageModel:
    path: Path
    num_params: int
    context: int
    def __new__(cls, path: str | PathLike[str]) -> Self: ...
    def generate(self, prompts: list[tuple[str, str]], options: str) -> list[list[str]]: ...
