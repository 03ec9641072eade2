"""Experiment trackers."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from common import BRIEF, TASK, unjudged

import grove_rl


class Log:
    """The interface that W&B and Trackio share."""

    def __init__(self) -> None:
        self.begun: dict = {}
        self.logged: list[tuple[dict, int]] = []
        self.finished = 0

    def init(self, **settings: Any) -> None:
        self.begun = settings

    def log(self, figures: dict, step: int) -> None:
        self.logged.append((figures, step))

    def finish(self) -> None:
        self.finished += 1


def test_records_are_logged_under_the_names_of_tensorboard() -> None:
    log, records = Log(), []
    with grove_rl.Tracker(log, name="a run") as tracker:

        def callback(record: dict) -> None:
            records.append(record)
            tracker(record)

        grove_rl.train("catch", iterations=3, eval_every=2, device="cpu", callback=callback)
    assert log.begun == {"project": "grove", "name": "a run"} and log.finished == 1
    assert [step for _, step in log.logged] == [record["env_steps"] for record in records]
    for (figures, _), record in zip(log.logged, records, strict=True):
        # A figure that is read from JSON again may differ in its last bit.
        assert figures["charts/episodic_return"] == pytest.approx(record["score"], rel=1e-12)
        assert figures["charts/episodic_length"] == pytest.approx(record["mean_length"], rel=1e-12)
        assert figures["losses/approx_kl"] == pytest.approx(record["approx_kl"], rel=1e-12)
        assert ("eval/mean_score" in figures) == (record["evaluation"] is not None)


def test_a_tracker_that_fails_warns_once_and_stops_no_run() -> None:
    class Broken(Log):
        def log(self, figures: dict, step: int) -> None:
            super().log(figures, step)
            raise ConnectionError("the server is gone")

    log = Broken()
    with pytest.warns(UserWarning) as warned, grove_rl.Tracker(log) as tracker:
        report = grove_rl.train("catch", iterations=3, device="cpu", callback=tracker)
    assert report.details["iteration"] == 3 and len(log.logged) == 1 and log.finished == 1
    assert [str(one.message).split(".")[0] for one in warned] == [
        "tracking stopped: ConnectionError('the server is gone')"
    ]


def test_weights_and_biases_takes_the_records(folder: Path, package: Callable[[str], ModuleType]) -> None:
    wandb = package("wandb")
    with grove_rl.Tracker(wandb, mode="offline", dir=str(folder)) as tracker:
        report = grove_rl.train("catch", iterations=3, device="cpu", callback=tracker)
    # The summary of a run lags behind its file, whose figures are in JSON.
    [file] = folder.glob("wandb/offline-run-*/*.wandb")
    logged = file.read_bytes()
    for line in Path(report.run, "metrics.jsonl").read_text().splitlines():
        assert str(json.loads(line)["score"])[:15].encode() in logged


def test_trackio_takes_the_records(
    folder: Path, monkeypatch: pytest.MonkeyPatch, package: Callable[[str], ModuleType]
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(folder / "trackio"))
    trackio = package("trackio")
    with grove_rl.Tracker(trackio, name="run") as tracker:
        grove_rl.train("catch", iterations=3, device="cpu", callback=tracker)
    assert list((folder / "trackio").glob("grove*"))


@pytest.mark.filterwarnings("ignore:(iteration|no score):UserWarning")
def test_warnings_are_those_of_python_and_records_are_none() -> None:
    log = Log()
    with pytest.warns(UserWarning, match="iteration 1: "):
        grove_rl.train(
            task=TASK, reward=unjudged, callback=grove_rl.Tracker(log), **(BRIEF | {"iterations": 2})
        )
    assert len(log.logged) == 2
