#!/usr/bin/env python3
"""Runs all measurements for a real GPU unattended and writes one JSON file.

    cargo build --release --features vulkan    # and/or cuda; both may be in one program
    benches/gpu.py                             # measures target/release/grove within nine minutes
    benches/gpu.py --quick --device wgpu:0     # tests the script itself with tiny sizes

It needs only Python 3.10 or newer, so that it also runs on machines without a compiler. To copy a program there,
compress it: `strip grove && xz -T0 grove` (Python unpacks xz and gzip files), and pass it by `--grove FILE` or
GROVE_BIN. Vulkan needs its loader, libvulkan.so.1; CUDA needs
the driver and libdevice.10.bc of the CUDA toolkit, in the folder nvvm/libdevice of CUDA_PATH. Without `--json FILE` the results go to
`benches/results/`, one file per device.

For each way to a GPU in the program (CUDA, ROCm, and one of Vulkan, Metal and wgpu, which are the same kernels), it
measures:

- whether the first iteration of a run agrees with the CPU;
- the time of the fruit catcher's default run to a greedy score of 7.67, first without cached kernels, then with
  them, for seeds 1 to 5;
- rules, rules and policy, training, peak memory and the fraction of the device's peak, for 4,096 to 2^20 games of
  128 steps, a hidden layer of 64 units, and one update with one epoch over all steps;
- the general engine compared with the fused one, and half precision where the device has it;
- whether two runs with the same seed write identical checkpoints;
- tokens a second of language models of three sizes, generated, learnt from and in whole iterations.

A command that fails or takes too long is recorded with the end of its output, and the others continue; commands
that do not fit into the time limit are recorded as skipped. The file is rewritten after every command. Exit status:
0 if every command succeeded that the device supports, otherwise 1.
"""

import argparse
import ctypes
import datetime
import gzip
import hashlib
import json
import lzma
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Kinds of device by preference: one of each group is measured, since those of a group run the same kernels. `wgpu` is
# part of every build.
GROUPS = (("cuda",), ("rocm",), ("vulkan", "metal", "wgpu"))
# The end of the message about a precision that a device does not have.
UNSUPPORTED = "the device does not support"
SMI = ("name", "driver_version", "memory.total", "power.limit", "pstate", "temperature.gpu") + tuple(
    f"clocks.{which}{part}" for which in ("current.", "max.") for part in ("sm", "memory")
)
STDERR_KEPT = 6000


def arguments():
    about, _, details = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(
        description=about, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    built = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "grove"
    parser.add_argument(
        "--grove", type=Path, default=os.environ.get("GROVE_BIN", built), help="the program"
    )
    parser.add_argument("--json", type=Path, help="the output file [benches/results/DEVICE.json]")
    parser.add_argument("--device", action="append", help="a device, instead of one of each kind")
    parser.add_argument("--minutes", type=float, default=9, help="total time limit [9]")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to test the script")
    return parser.parse_args()


def unpacked(program, folder):
    """Returns the path of the program, unpacked if necessary."""
    program = Path(program)
    if not program.is_file():
        sys.exit(f"there is no program `{program}`; build one or name it by --grove or GROVE_BIN")
    target = folder / "grove"
    openers = {".xz": lzma.open, ".gz": gzip.open}
    if program.suffix == ".zst":
        sys.exit(f"`{program}` is compressed by zstd, which Python may lack: use xz -T0, or unpack it")
    if program.suffix in openers:
        with openers[program.suffix](program) as packed, target.open("wb") as out:
            shutil.copyfileobj(packed, out)
    else:
        return program.resolve()
    target.chmod(0o755)
    return target


def cache(folder):
    """Returns an environment in which drivers and libraries cache compiled kernels in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ("HOME", "XDG_CACHE_HOME", "CUDA_CACHE_PATH", "__GL_SHADER_DISK_CACHE_PATH")
    return os.environ | {name: str(folder) for name in names}


def smi():
    """Queries the NVIDIA driver: a list of {property: value} per device; [] without a driver."""
    command = ["nvidia-smi", "--query-gpu=" + ",".join(SMI), "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [dict(zip(SMI, line.split(", "))) for line in done.stdout.splitlines()]


def processor():
    """Returns the CPU's name on Linux."""
    try:
        info = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    found = re.search(r"model name\s*:\s*(.*)", info)
    return found[1] if found else platform.processor()


class Session:
    """The commands run so far, and the output file."""

    def __init__(self, args, program, folder):
        self.program, self.folder, self.path = program, folder, args.json
        self.ends = time.monotonic() + 60 * args.minutes
        self.caches = cache(folder / "kernels")
        self.result = {
            "quick": args.quick,
            "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "program": hashlib.sha256(program.read_bytes()).hexdigest(),
            "machine": {
                "system": platform.platform(),
                "processor": processor(),
                "cores": os.cpu_count(),
            },
            "nvidia_smi_before": smi(),
            "devices": [],
            "runs": [],
            "first_iterations": [],
            "repeated_runs": [],
        }

    def left(self):
        """Returns the remaining seconds."""
        return self.ends - time.monotonic()

    def run(self, what, device, command, seconds, env=None):
        """Runs the program; records and returns {what, device, rc, stdout, ...}."""
        limit = min(seconds, self.left())
        command = [str(part) for part in command]
        note = {"what": what, "device": device, "command": ["grove", *command], "rc": None}
        self.result["runs"].append(note)
        print(f"{self.left():5.0f} s left  {device or '':9} {what}", file=sys.stderr, flush=True)
        if limit < 5:
            note["left_out"] = "no time left"
            self.write()
            return note
        started = time.monotonic()
        process = subprocess.Popen(
            [self.program, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            cwd=self.folder,
            env=env or self.caches,
            start_new_session=True,
        )
        try:
            stdout, stderr = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            stdout, stderr = process.communicate()
            note["stopped_after_s"] = round(limit, 1)
        note |= {"rc": process.returncode, "seconds": round(time.monotonic() - started, 3)}
        if stderr.strip():
            note["stderr"] = stderr[-STDERR_KEPT:]
        if process.returncode != 0 and UNSUPPORTED in stderr:
            note["left_out"] = stderr.strip().splitlines()[-1]
        elif process.returncode != 0:
            why = f"stopped after {limit:.0f} s" if "stopped_after_s" in note else "failed"
            print(f"              {why} {stderr.strip()[-300:]}", file=sys.stderr, flush=True)
        self.write()
        return note | {"stdout": stdout}

    def bench(self, what, device, options, seconds, env=None):
        """Runs `grove bench` and records its report."""
        path = self.folder / "report.json"
        path.unlink(missing_ok=True)
        command = ["bench", "--device", device, "--out", path.name, *options]
        done = self.run(what, device, command, seconds, env)
        if done["rc"] == 0:
            self.result["runs"][-1]["report"] = json.loads(path.read_text())
            self.write()

    def write(self):
        """Writes the output file, if its path is known."""
        if self.path:
            text = json.dumps(self.result, indent=1)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(text + "\n")


def sums(run):
    """Returns {file: SHA-256} of a run's checkpoints."""
    files = sorted(p for part in ("checkpoints", "best") for p in (run / part).rglob("*"))
    return {
        str(p.relative_to(run)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in files
        if p.is_file()
    }


# Metrics of an iteration: those that must agree within 0.1 %, and those that may differ a little more, since now and
# then another rounding draws another action.
CLOSE, SIMILAR = ("episodes", "entropy", "grad_norm"), ("score", "mean_reward")


def first_iteration(session, device):
    """Returns the metrics of a small run's first iteration, or None."""
    run = f"one-{device.replace(':', '-')}"
    command = ["train", "fruit", "--device", device, "--seed", 7, "--run-dir", run]
    command += ["--iterations", 1, "--set", "num_groups=64", "--set", "num_steps=128"]
    done = session.run("a first iteration", device, command, 60)
    if done["rc"] != 0:
        return None
    record = json.loads((session.folder / run / "metrics.jsonl").read_text().splitlines()[0])
    return {name: record[name] for name in CLOSE + SIMILAR}


def compare_first_iterations(session, devices):
    """Checks that the first iteration on each device agrees with the CPU."""
    want = first_iteration(session, "cpu")
    for device in devices:
        got = first_iteration(session, device)
        agrees = None
        if got and want:
            close = all(abs(got[k] - want[k]) <= 1e-3 * abs(want[k]) for k in CLOSE)
            agrees = close and all(abs(got[k] - want[k]) <= 0.02 for k in SIMILAR)
        note = {"device": device, "agrees_with_cpu": agrees, "numbers": got, "cpu": want}
        session.result["first_iterations"].append(note)
        session.write()


def repeat_a_run(session, device, quick):
    """Trains twice with the same seed and compares the checkpoints byte by byte."""
    runs = []
    for turn in ("first", "second"):
        run = f"{turn}-{device.replace(':', '-')}"
        command = ["train", "fruit", "--device", device, "--seed", 7, "--run-dir", run]
        command += ["--iterations", 2 if quick else 20, "--set", "save_every=1"]
        command += ["--set", "num_groups=4"] if quick else []
        done = session.run(f"the same run, {turn}", device, command, 60)
        runs.append(sums(session.folder / run) if done["rc"] == 0 else {})
    same = runs[0] == runs[1] if all(runs) else None
    note = {"device": device, "same_bytes": same, "files": len(runs[0]), "sha256": runs[0]}
    if same is False:
        note["sha256_second"] = runs[1]
    session.result["repeated_runs"].append(note)
    session.write()


# Decoders with random weights: the sizes of `tiny`, SmolLM2-135M and Qwen2.5-0.5B, with a small vocabulary.
DECODERS = {
    "tiny": (128, 4, 4, 2, 384),
    "135M": (576, 30, 9, 3, 1536),
    "0.5B": (896, 24, 14, 2, 4864),
}
SIZES = ("hidden_size", "num_layers", "num_heads", "num_kv_heads", "intermediate_size")


def texts(quick):
    """Returns [what, options] of the language benchmarks."""
    for name, sizes in {"tiny": (16, 1, 2, 1, 24)}.items() if quick else DECODERS.items():
        prompts, members, tokens = (2, 2, 4) if quick else (32, 8, 9) if name == "tiny" else (8, 8, 128)
        sets = [f"model.{what}={size}" for what, size in zip(SIZES, sizes)]
        sets += [f"num_prompts={prompts}", f"group_size={members}", f"max_new_tokens={tokens}"]
        words = [word for one in sets for word in ("--set", one)]
        yield f"texts, {name}", ["sort", "--model", "tiny", "--repeats", 1 if quick else 3, *words]


def measure(session, devices, quick):
    """Runs all measurements, the most important first, each on every device before the next."""
    shape = ["fruit", "--num-steps", 16 if quick else 128]
    sizes = [64, 128] if quick else [4096, 1 << 16, 1 << 18, 1 << 20]
    tiny = ["fruit", "--num-envs", 64, "--num-steps", 16, "--repeats", 1, "--no-peak"]
    small = ["--set", "num_groups=4", "--set", "num_steps=16"]
    score = ["--score", -20, *small] if quick else ["--score", 7.67]
    repeats = 2 if quick else 10

    def games(count, *more, hidden=64):
        few = repeats if count < 1 << 18 else max(2, repeats // 2)
        return [*shape, "--num-envs", count, "--hidden", hidden, "--repeats", few, *more]

    def everywhere(what, options, seconds, env=lambda device: None):
        for device in devices:
            session.bench(what, device, options, seconds, env(device))

    compare_first_iterations(session, devices)
    fresh = lambda device: cache(session.folder / f"cold-{device.replace(':', '-')}")
    everywhere(f"{sizes[0]} games", games(sizes[0]), 60)
    everywhere("time to score, no kernel on disk", [*tiny, *score], 60, fresh)
    seeds = ["--score-repeats", 2 if quick else 5]
    everywhere("time to score, kernels on disk", [*tiny, *score, *seeds], 90, fresh)
    everywhere(f"{sizes[1]} games", games(sizes[1], "--no-peak"), 45)
    for device in devices:
        repeat_a_run(session, device, quick)
    general = ("--no-peak", "--engine", "general")
    everywhere(f"{sizes[0]} games, general engine", games(sizes[0], *general), 45)
    probe = session.run("options", None, ["bench", "--help"], 20)
    if "--precision" in probe.get("stdout", ""):
        for precision in ("f16", "bf16"):
            half = games(sizes[1], "--no-peak", "--precision", precision)
            everywhere(f"{sizes[1]} games, {precision}", half, 45)
    for size in sizes[2:]:
        everywhere(f"{size} games", games(size, "--no-peak"), 45)
    wide = games(sizes[1], "--no-peak", hidden="128,128")
    everywhere(f"{sizes[1]} games, hidden 128,128", wide, 45)
    for what, options in texts(quick):
        everywhere(what, options, 120)
    # The same on the machine's CPU.
    session.bench(f"{sizes[0]} games", "cpu", games(sizes[0]), 60)
    session.bench("time to score", "cpu", [*tiny, *score, *seeds], 60)


def devices_of(session, wanted):
    """Returns the devices to measure: those requested, or the first hardware device of each group of kinds."""
    try:
        ctypes.CDLL("libvulkan.so.1")
    except OSError:
        if sys.platform == "linux":
            print("libvulkan.so.1 is missing: no Vulkan device will be found", file=sys.stderr)
    done = session.run("devices", None, ["devices", "--json"], 60)
    if done["rc"] != 0:
        sys.exit("`grove devices` fails; see above")
    there = json.loads(done["stdout"])["devices"]
    session.result["devices"] = there
    if wanted:
        names = [d["name"] for d in there]
        if missing := set(wanted) - set(names):
            sys.exit(f"no device {', '.join(sorted(missing))}; there are: {', '.join(names)}")
        return [d for d in there if d["name"] in wanted]
    real = [d for d in there if d["kind"] != "cpu" and not d["software"]]
    first = {}
    for device in real:
        first.setdefault(device["name"].partition(":")[0], device)
    ways = [[first[kind] for kind in group if kind in first] for group in GROUPS]
    found = [way[0] for way in ways if way]
    return found or sys.exit(
        "no GPU that this program can use; there are: " + ", ".join(d["name"] for d in there)
    )


def rate(figure):
    return f"{figure['median']:.2e} ({figure['min']:.1e} to {figure['max']:.1e})"


def share(report, which):
    """Returns the fractions of the device's peak arithmetic and bandwidth."""
    peak = report.get("device_peak") or {}
    cells = []
    for unit in ("flops", "bytes"):
        most = peak.get(f"{unit}_per_second")
        each = report["work_per_step"][f"{which}_{unit}"]
        median = report[f"{which}_steps_per_second"]["median"]
        cells.append(f"{100 * median * each / most:.1f} %" if most else "-")
    return cells


def table(lines):
    widths = [max(len(cell) for cell in column) for column in zip(*lines)]
    for i, line in enumerate(lines):
        print("| " + " | ".join(f"{cell:{w}}" for cell, w in zip(line, widths)) + " |")
        if i == 0:
            print("|" + "|".join("-" * (w + 2) for w in widths) + "|")


def summary(result):
    """Prints the tables."""
    # The device's peak is measured in its first run and applies to the others.
    peaks = {}
    rates = [["device", "what", "rules only", "rules + policy", "trained", "FLOPs", "bytes", "MiB"]]
    times = [["device", "what", "first update, s", "score, s", "each seed, s"]]
    tokens = [["device", "what", "generated", "learnt from", "whole iterations", "MiB"]]
    for run in result["runs"]:
        report = run.get("report")
        if not report:
            continue
        if "generated_per_second" in report:
            figures = [report[f"{which}_per_second"] for which in ("generated", "learnt", "trained")]
            memory = report["peak_memory_bytes"]
            cells = [*map(rate, figures), f"{memory / 2**20:.0f}" if memory else "-"]
            tokens.append([run["device"], run["what"], *cells])
            continue
        peaks.setdefault(run["device"], report["device_peak"])
        report = report | {"device_peak": peaks[run["device"]]}
        runs = report["seconds_to_score"]
        if runs:
            seconds = runs["seconds"]
            shown = f"{seconds['median']:.2f}" if seconds else "not reached"
            each = ", ".join("-" if s is None else f"{s:.2f}" for s in runs["runs"])
            update = f"{report['seconds_to_first_update']:.2f}"
            times.append([run["device"], run["what"], update, shown, each])
            continue
        figures = [report[f"{which}_steps_per_second"] for which in ("rules", "policy", "trained")]
        memory = report["peak_memory_bytes"]
        cells = [*map(rate, figures), *share(report, "trained")]
        cells.append(f"{memory / 2**20:.0f}" if memory else "-")
        rates.append([run["device"], run["what"], *cells])
    print("\nsteps per second: median (range); FLOPs and bytes: fraction of the peak in training")
    table(rates)
    print("\ntime to a score")
    table(times)
    print("\ntokens per second: median (range)")
    table(tokens)
    print()
    for device, peak in peaks.items():
        if peak:
            print(f"{device}: measured peak", json.dumps(peak))
    for first in result["first_iterations"]:
        agrees = {True: "as on the CPU", False: "OTHER THAN ON THE CPU", None: "not known"}
        print(f"{first['device']}: a run's first iteration is {agrees[first['agrees_with_cpu']]}")
    for repeated in result["repeated_runs"]:
        same = {True: "the same bytes", False: "OTHER BYTES", None: "not known"}
        files = f"{repeated['files']} files"
        print(f"{repeated['device']}: two runs of a seed: {same[repeated['same_bytes']]}, {files}")
    for run in result["runs"]:
        if run["rc"] != 0:
            why = run.get("left_out") or f"status {run['rc']}"
            if "stopped_after_s" in run:
                why = f"stopped after {run['stopped_after_s']} s"
            print(f"NOT MEASURED: {run['device'] or ''} {run['what']}: {why}")


def main():
    args = arguments()
    # Shader compilers may leave processes behind that still write to the folder.
    with tempfile.TemporaryDirectory(prefix="grove-gpu-", ignore_cleanup_errors=True) as folder:
        folder = Path(folder)
        session = Session(args, unpacked(args.grove, folder), folder)
        devices = devices_of(session, args.device)
        if not session.path:
            name = re.sub(r"[^a-z0-9]+", "-", devices[0]["description"].lower()).strip("-")
            session.path = ROOT / "benches" / "results" / f"{name}.json"
        measure(session, [device["name"] for device in devices], args.quick)
        result = session.result
        result["nvidia_smi_after"] = smi()
        session.write()
    summary(result)
    print(f"\nwrote {session.path}")
    same = all(repeated["same_bytes"] for repeated in result["repeated_runs"])
    agrees = all(first["agrees_with_cpu"] for first in result["first_iterations"])
    done = all(run["rc"] == 0 or UNSUPPORTED in run.get("left_out", "") for run in result["runs"])
    sys.exit(0 if same and agrees and done else 1)


if __name__ == "__main__":
    main()
