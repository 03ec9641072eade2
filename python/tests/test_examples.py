"""The examples and notebooks run."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy
import pytest

PACKAGE = Path(__file__).parents[1]


@pytest.mark.parametrize("name", ["first_game", "text_rewards"])
def test_the_cells_of_a_notebook_run(name: str) -> None:
    notebook = json.loads((PACKAGE / "notebooks" / f"{name}.ipynb").read_text())
    cells: dict = {"__name__": name}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), cells)
    assert Path(cells["report"].run, "metrics.jsonl").read_text()


def test_the_example_of_the_readme_runs() -> None:
    blocks = (PACKAGE.parent / "README.md").read_text().split("```python\n")[1:]
    names: dict = {}
    exec(next(block for block in blocks if "import grove_rl" in block).split("```")[0], names)
    assert names["report"].mean_score > 195


def test_the_example_of_a_dataset_writes_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    saved: dict = {}
    package, numpy_format = ModuleType("safetensors"), ModuleType("safetensors.numpy")
    numpy_format.save_file = lambda tensors, path: saved.update(tensors)  # type: ignore[attr-defined]
    package.numpy = numpy_format  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "safetensors", package)
    monkeypatch.setitem(sys.modules, "safetensors.numpy", numpy_format)
    block = (PACKAGE.parent / "docs" / "data.md").read_text().split("```python\n")[1]
    exec(block.split("```")[0], {})
    assert saved["obs"].shape == (1000, 4) and saved["obs"].dtype == numpy.float32
    assert saved["actions"].shape == (1000,) and saved["actions"].dtype == numpy.int64
    assert saved["ends"].shape == (1000,) and saved["ends"].dtype == numpy.uint8
    assert (numpy.flatnonzero(saved["ends"] == 1) == numpy.arange(9, 1000, 10)).all()


def test_stable_baselines_trains_on_a_game(package: Callable[[str], ModuleType]) -> None:
    package("stable_baselines3")
    words = [sys.executable, PACKAGE / "examples" / "sb3_ppo.py", "--game", "Catch", "--steps", "2048"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "mean return of 100 episodes" in done.stdout
