"""The examples run."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_stable_baselines_trains_on_a_game(tmp_path: Path) -> None:
    pytest.importorskip("stable_baselines3")
    words = [sys.executable, EXAMPLES / "sb3_ppo.py", "--game", "Catch", "--steps", "2048"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "mean return of 100 episodes" in done.stdout
