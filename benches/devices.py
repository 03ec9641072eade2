#!/usr/bin/env python3
"""Tests and measures runs shared by several GPUs of one machine unattended, and writes one JSON file.

    cargo build --release --features cuda      # CUDA devices reduce gradients by NCCL, if installed
    benches/devices.py                         # uses all CUDA devices
    benches/devices.py --device wgpu:0,wgpu:0 --quick   # tests the script itself

It needs only Python 3.10 or newer. On the listed devices it runs:

- the same training on the first device alone and on all of them, with the fused and with the general engine, and
  reports the relative difference of the parameters;
- the communication of the shared runs: seconds, bytes and imbalance, from `metrics.jsonl`;
- `grove bench fruit --scaling`.

Exit status: 0 if every command succeeded and no parameters differ by more than 1e-5.
"""

import argparse
import array
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 1e-5


def arguments():
    about, _, details = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(
        description=about, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    built = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "grove"
    parser.add_argument(
        "--grove", type=Path, default=os.environ.get("GROVE_BIN", built), help="the program"
    )
    parser.add_argument("--device", help="comma-separated devices [all CUDA devices]")
    parser.add_argument("--json", type=Path, default="devices.json", help="the output file [devices.json]")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to test the script")
    return parser.parse_args()


def grove(args, *words):
    """Runs the program and parses its JSON output."""
    done = subprocess.run(
        [args.grove, *words, "--json"], capture_output=True, text=True, timeout=600
    )
    sys.stderr.write(done.stderr)
    if done.returncode:
        sys.exit(f"grove {' '.join(words)} ended with {done.returncode}")
    return json.loads(done.stdout)


def devices(args):
    """Returns the devices that share a run, comma-separated."""
    if args.device:
        return args.device
    found = grove(args, "devices")["devices"]
    cuda = [device["name"] for device in found if device["name"].startswith("cuda:")]
    if len(cuda) < 2:
        sys.exit(f"there are {len(cuda)} CUDA devices here, and it takes two; --device names others")
    return ",".join(cuda)


def parameters(run):
    """Returns the parameters in a run's last checkpoint."""
    folder = max((run / "checkpoints").iterdir())
    bytes_ = (folder / "weights.safetensors").read_bytes()
    header = 8 + int.from_bytes(bytes_[:8], "little")
    numbers = array.array("f")
    numbers.frombytes(bytes_[header:])
    return numbers


def off(a, b):
    """Returns the distance of two vectors relative to the norm of the first."""
    far = sum((x - y) ** 2 for x, y in zip(a, b, strict=True))
    return (far / sum(x**2 for x in a)) ** 0.5


def runs(args, all_devices, folder):
    """Runs training on one device and on all of them, for each engine."""
    small = ["num_groups=16", "num_steps=8", "learn_steps=8", "hidden=[8]"] if args.quick else ["num_groups=1024"]
    common = [word for value in ["num_minibatches=2", *small] for word in ("--set", value)]
    cases = {
        "fused": ["fruit", "--iterations", "3"],
        "general": ["catch", "--iterations", "3", "--engine", "general"],
    }
    for name, words in cases.items():
        results = {}
        for which in (all_devices.split(",")[0], all_devices):
            run = folder / f"{name}-{which.count(',') + 1}"
            grove(args, "train", *words, *common, "--device", which, "--run-dir", str(run))
            lines = (run / "metrics.jsonl").read_text().splitlines()
            records = [json.loads(line) for line in lines]
            results[which] = (parameters(run), records, json.loads((run / "run.json").read_text()))
        (one, _, _), (shared, records, note) = results.values()
        communications = [record["communication"] for record in records]
        yield {
            "run": name,
            "engine": note["engine"],
            "ranks": note["ranks"],
            "parameters_off": off(one, shared),
            "communication": {
                key: statistics.median(one[key] for one in communications)
                for key in ("seconds", "bytes", "other_bytes", "imbalance")
            },
        }


def main():
    args = arguments()
    args.grove = args.grove.resolve()
    which = devices(args)
    result = {"devices": which, "quick": args.quick, "runs": []}
    with tempfile.TemporaryDirectory() as folder:
        for run in runs(args, which, Path(folder)):
            result["runs"].append(run)
            args.json.write_text(json.dumps(result, indent=1) + "\n")
            print(f"{run['run']}: parameters off by {run['parameters_off']:.1e}")
    size = ["--num-envs", "512", "--set", "num_steps=8", "--set", "learn_steps=8"] if args.quick else ["--num-envs", "69632"]
    words = ["bench", "fruit", "--scaling", "--device", which, "--repeats", "3", *size]
    result["scaling"] = grove(args, *words)
    args.json.write_text(json.dumps(result, indent=1) + "\n")
    print(f"everything is in {args.json}")
    if max(run["parameters_off"] for run in result["runs"]) > LIMIT:
        sys.exit(f"parameters differ by more than {LIMIT}")


main()
