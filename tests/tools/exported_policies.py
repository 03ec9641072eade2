#!/usr/bin/env python3
"""Compares exported policies, as ONNX Runtime computes them, with Grove on random observations.

usage: exported_policies.py PROGRAM   (in an environment with `pip install onnxruntime`)

For every game, and every kind of network and activation on one of them: logits and memory within 1e-6 of their size, the same
greedy actions wherever two logits are not closer than that.
"""

import json
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy
import onnxruntime

TOLERANCE = 1e-6
POLICIES = Path(__file__).resolve().parents[2] / "assets" / "policies"
CASES = [(path.stem, []) for path in sorted(POLICIES.glob("*.safetensors"))]
CASES += [("catch", [f"activation={name}"]) for name in ("tanh", "silu", "gelu")]
CASES += [("recall", ["kind=gru"]), ("catch", ["kind=gru", "hidden=[24,16]", "activation=gelu"])]
CASES += [("recall", ["kind=decoder"]), ("catch", ["kind=decoder", "context=7", "num_kv_heads=4", "num_layers=1"])]


def tensors(path):
    data = Path(path).read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    body = data[8 + size :]
    return {
        name: numpy.frombuffer(body[slice(*about["data_offsets"])], "<f4").reshape(about["shape"])
        for name, about in header.items()
    }


def compare(program, folder, number, game, changes):
    run, model, samples = (folder / f"{number}{end}" for end in ("", ".onnx", ".samples"))
    words = [word for change in changes for word in ("--set", change)]
    train = [program, "train", game, "--device", "cpu", "--iterations", "3", "--run-dir", run, *words]
    subprocess.run(train, check=True, capture_output=True)
    export = [program, "export", run, "--out", model, "--samples", samples]
    subprocess.run(export, check=True, capture_output=True)
    grove = tensors(samples)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    feed = {entry.name: grove[entry.name] for entry in session.get_inputs()}
    outputs = dict(zip([entry.name for entry in session.get_outputs()], session.run(None, feed)))
    worst = 0.0
    for name in outputs.keys() & grove.keys():
        scale = max(1.0, numpy.abs(grove[name]).max())
        worst = max(worst, float(numpy.abs(outputs[name] - grove[name]).max()) / scale)
    assert worst <= TOLERANCE, (game, changes, worst)
    assert outputs["action"].shape == (len(grove["obs"]),)
    ranked = numpy.sort(grove["logits"], axis=1)
    is_clear = ranked[:, -1] - ranked[:, -2] > 2 * TOLERANCE * max(1.0, numpy.abs(ranked).max())
    same = outputs["action"] == grove["logits"].argmax(axis=1)
    assert (same | ~is_clear).all(), (game, changes)
    print(f"{game} {' '.join(changes)}: {len(same)} observations, largest difference {worst:.1e}")


def main(program):
    with tempfile.TemporaryDirectory() as folder:
        for number, (game, changes) in enumerate(CASES):
            compare(program, Path(folder), number, game, changes)


if __name__ == "__main__":
    main(sys.argv[1])
