"""A decoder trained on labelled sequences: Grove compared with PyTorch, alternately.

    sequences.py --grove PROGRAM [--rounds N] [--long]

Both train on the same data, windows x steps x features, with the same sizes (see decoder_torch.py) and the data in
place; PyTorch is also measured with every batch moved and cloned. Rates are medians of optimizer steps after a
warm-up; ratios are taken within a round. `--long` also compares peak memory on 8 sequences of 4,096 steps, where
Grove recomputes activations (`update.gradient_checkpointing`) and PyTorch keeps them.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
FEATURES, ACTIONS = 16, 3  # those of the fruit catcher, whose name the manifest needs


def write_dataset(folder, windows, steps):
    """Writes random sequences as a dataset with one safetensors shard."""
    rng, count = np.random.default_rng(1), windows * steps
    ends = np.zeros(count, np.uint8)
    ends[steps - 1 :: steps] = 1
    tensors = {
        "obs": ("F32", rng.standard_normal((count, FEATURES), dtype=np.float32)),
        "actions": ("I32", rng.integers(0, ACTIONS, count).astype(np.int32)),
        "ends": ("U8", ends),
    }
    header, at = {}, 0
    for name, (kind, array) in tensors.items():
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    folder.mkdir()
    with open(folder / "0.safetensors", "wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for _, array in tensors.values():
            file.write(array.tobytes())
    manifest = {"format": 1, "env": "fruit", "shards": ["0.safetensors"]}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def peak_of(command):
    """Runs a command; returns its output and its peak memory."""
    with tempfile.TemporaryFile("w+") as out:
        child = subprocess.Popen(command, stdout=out)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            sys.exit(f"{command[0]} failed: {child.returncode}")
        out.seek(0)
        return out.read(), usage.ru_maxrss * (1024 if sys.platform == "linux" else 1)


def grove(program, data, folder, batch, steps, iterations, checkpointing, threads):
    settings = dict(
        kind="decoder", hidden_size=128, num_layers=4, num_heads=4, num_kv_heads=2, intermediate_size=384,
        context=steps, eval_every=100_000, **{
            "data.window": steps, "data.batch_size": batch, "data.history": 0, "data.epochs": 1000,
            "update.gradient_checkpointing": str(checkpointing).lower(),
            "update.num_minibatches": 1, "update.update_epochs": 1,
        },
    )  # fmt: skip
    command = [program, "fit", data, "--device", "cpu", "--run-dir", folder, "--json"]
    command += ["--iterations", str(iterations)] + (["--threads", str(threads)] if threads else [])
    command += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(list(map(str, command)), check=True, **quiet)
    records = [json.loads(line) for line in open(folder / "metrics.jsonl")]
    # Peak memory until the end of the update, without the final evaluation.
    peak = records[-1]["memory"]["peak"]
    return statistics.median(record["steps_per_second"] for record in records[2:] or records), peak


def torch(batch, steps, windows, repeats, threads):
    command = [sys.executable, HERE / "decoder_torch.py", "--batch", batch, "--steps", steps]
    command += ["--features", FEATURES, "--actions", ACTIONS, "--windows", windows, "--repeats", repeats]
    command += ["--threads", threads] if threads else []
    out, peak = peak_of(list(map(str, command)))
    return json.loads(out), peak


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--grove", required=True, metavar="PROGRAM")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0, help="default: one per core")
    parser.add_argument("--long", action="store_true", help="also compare memory at 4,096 steps")
    args = parser.parse_args()
    ratios = {"resident": [], "moved": []}
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        write_dataset(folder / "short", 576, 256)
        for number in range(args.rounds):
            ours, _ = grove(
                args.grove, folder / "short", folder / f"run-{number}", 64, 256, 12, False, args.threads
            )
            theirs, _ = torch(64, 256, 512, 2, args.threads)
            for way in ratios:
                rate = theirs[f"{way}_steps_per_second"]["median"]
                ratios[way].append(ours / rate)
                print(f"round {number + 1}: Grove {ours:.3g} steps/s, PyTorch {way} {rate:.3g}", flush=True)
        for way, of in ratios.items():
            print(f"Grove / PyTorch {way}: {statistics.median(of):.2f} ({min(of):.2f} to {max(of):.2f})")
        if args.long:
            write_dataset(folder / "long", 20, 4096)
            _, ours = grove(args.grove, folder / "long", folder / "run-long", 8, 4096, 1, True, args.threads)
            theirs, peak = torch(8, 4096, 8, 0, args.threads)
            before = theirs["memory_before_bytes"]
            print(
                f"memory at its peak, 8 x 4,096 steps: Grove {ours / 2**20:.0f} MiB in all, "
                f"PyTorch {peak / 2**20:.0f} MiB, {before / 2**20:.0f} of them before the first update"
            )


if __name__ == "__main__":
    main()
