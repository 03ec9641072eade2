#!/usr/bin/env python3
"""Compares TensorBoard's event files with metrics.jsonl, as the package `tensorboard` reads them.

usage: event_files.py PROGRAM   (in an environment with `pip install tensorboard`)

A run is interrupted, resumed and compared scalar by scalar: every one is the record's, in single precision, at the record's step,
once. The settings are those of the run, and each of its two ends has an animation.
"""

import csv
import json
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

NAMES = {
    "charts/episodic_return": lambda record: record["score"],
    "charts/episodic_length": lambda record: record["mean_length"],
    "charts/SPS": lambda record: record["steps_per_second"],
    "charts/learning_rate": lambda record: record["learning_rate"],
    "losses/policy_loss": lambda record: record["loss"],
    "losses/entropy": lambda record: record["entropy"],
    "losses/approx_kl": lambda record: record["approx_kl"],
    "losses/clipfrac": lambda record: record["clip_fraction"],
    "losses/grad_norm": lambda record: record["grad_norm"],
    "time/iteration": lambda record: record["seconds"]["total"],
    "eval/mean_score": lambda record: (record["evaluation"] or {}).get("mean_score"),
    "eval/mean_length": lambda record: (record["evaluation"] or {}).get("mean_length"),
}


def single(number):
    return struct.unpack("f", struct.pack("f", number))[0]


def main(program):
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        common = ["--device", "cpu", "--run-dir", str(run)]
        tracked = ["--set", "tensorboard=true", "--set", "csv=true", "--set", "eval_every=7"]
        subprocess.run([program, "train", "catch", *common, *tracked, "--iterations", "20"], check=True, stderr=subprocess.DEVNULL)
        subprocess.run([program, "train", "--resume", *common, "--iterations", "30"], check=True, stderr=subprocess.DEVNULL)
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert len(records) == 30
        events = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
        events.Reload()
        for name, value in NAMES.items():
            expected = [(r["env_steps"], single(value(r))) for r in records if value(r) is not None]
            read = [(event.step, event.value) for event in events.Scalars(name)]
            assert read == expected, (name, read[:3], expected[:3])
            assert expected, name
        (text,) = events.Tensors("hyperparameters/text_summary")
        assert "|optimizer.learning_rate|" in text.tensor_proto.string_val[0].decode()
        content = events.PluginTagToContent("hparams")["_hparams_/session_start_info"]
        settings = HParamsPluginData.FromString(content).session_start_info.hparams
        assert settings["iterations"].number_value == 20 and settings["tracking.csv"].bool_value
        assert settings["env"].string_value == "catch" and settings["policy.hidden"].string_value.startswith("[")
        animations = events.Images("animation/best_policy")
        assert [animation.step for animation in animations] == [records[at]["env_steps"] for at in (19, 29)]
        for animation in animations:
            size = struct.unpack("<HH", animation.encoded_image_string[6:10])
            assert size == (animation.width, animation.height) and animation.encoded_image_string[:6] == b"GIF89a"
        with open(run / "metrics.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        assert [int(row["iteration"]) for row in rows] == list(range(1, 31))
        for name, value in NAMES.items():
            assert [float(row[name]) if row[name] else None for row in rows] == [value(r) for r in records], name
        print(f"{len(NAMES)} scalars of {len(records)} iterations are those of metrics.jsonl, and {len(rows[0])} columns of CSV")


if __name__ == "__main__":
    main(sys.argv[1])
