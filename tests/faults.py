#!/usr/bin/env python3
"""Runs that meet faults at random, by a seed, and must continue to the same bytes.

usage: faults.py PROGRAM [--seed N] [--faults N] [--case N]

Each case is a run of a game, a dataset or a language model, on one rank or two. It is killed, asked to end, stopped for a
while, runs into a full disk (`ulimit -f`), or has a verifier that is late, ends or prints garbage, repeatedly; it is resumed until
it is done. Then it has all records, and its last checkpoint, its best policy and its completions are those of a run without faults.
The seed decides the faults of a case, and `--case` repeats one; a fault comes once the run has written so many records.
Prints a line a case, and exits 1 if one fails.
"""
import argparse, hashlib, json, os, random, resource, signal, subprocess, sys, tempfile, time
from pathlib import Path

HANG = 300
GAME = ["catch", "--set", "num_groups=8", "--set", "eval_every=5", "--set", "eval_episodes=20"]
TEXT = ["--model", "tiny", "--set", "fit.iterations=5", "--set", "generation.num_prompts=4", "--set", "generation.group_size=4",
        "--set", "generation.max_new_tokens=6", "--set", "model.hidden_size=16", "--set", "model.intermediate_size=16",
        "--set", "model.num_layers=1", "--set", "eval_every=5", "--set", "eval_episodes=8"]
COMMANDS = {
    "game": ["train", *GAME],
    "ranks": ["train", *GAME],
    "data": ["fit", "shown", "--set", "eval_every=5"],
    "text": ["train", "sort", "--set", "sort.length=2", *TEXT],
    "verifier": ["train", "--task-data", "own.jsonl", "--verifier", "python3 verifier.py", "--verifier-sandbox", "off",
                 "--set", "data.timeout=20", *TEXT],
}
# It fails once on a completion: one on which it fails twice is not judged, so that the run would be another.
VERIFIER = """import hashlib, json, os, random, sys, time
os.makedirs("failed", exist_ok=True)
for line in sys.stdin:
    asked = json.loads(line)
    fault = open("fault").read() if random.random() < 0.05 else ""
    text = asked["prompt"] + " " + asked["completion"]
    mark = "failed/" + hashlib.sha256(text.encode()).hexdigest()
    if fault:
        fault = "" if os.path.exists(mark) else fault
        open(mark, "w")
    if fault == "dies":
        os._exit(3)
    if fault == "late":
        time.sleep(0.2)
    if fault == "babbles":
        print("babble " * 1000, flush=True)
    print(json.dumps({"id": asked["id"], "reward": float(len(set(asked["completion"])))}), flush=True)
"""
FAULTS = ["kill", "kill", "kill", "end", "stop", "full"]


def records(run):
    try:
        return (run / "metrics.jsonl").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def content(run):
    """Digests of what must not depend on faults, and the iterations of the records."""
    newest = max((run / "checkpoints").iterdir())
    files = [*newest.iterdir(), *(run / "best").iterdir(), run / "completions.jsonl"]
    digests = {str(file.relative_to(run)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()}
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return digests, [json.loads(line)["iteration"] for line in lines]


class Case:
    def __init__(self, program, seed, number, place):
        self.random = random.Random(f"{seed} {number}")
        self.kind = self.random.choice(list(COMMANDS))
        self.program, self.place, self.faults = program, place, []
        self.device = ["cpu,cpu", "--timeout", str(HANG)] if self.kind == "ranks" else ["cpu"]
        # Many checkpoints, so that faults meet their writing.
        self.iterations = self.random.randint(20, 60) if self.kind in ("text", "verifier") else self.random.randint(60, 200)
        self.sets = ["--set", f"save_every={self.random.choice([1, 1, 2, 5])}", "--set", "lr_scheduler_type=constant"]
        (place / "fault").write_text("")
        if self.kind == "verifier":
            (place / "verifier.py").write_text(VERIFIER)
            lines = [json.dumps({"prompt": f"{i}=", "solution": str(i * i)}) for i in range(24)]
            (place / "own.jsonl").write_text("\n".join(lines))
        if self.kind == "data":
            self.done([program, "demo", "catch", "--player", "random", "--episodes", "40", "--out", "shown"])

    def start(self, words, **more):
        return subprocess.Popen(words, cwd=self.place, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                stderr=subprocess.PIPE, start_new_session=True,
                                env={**os.environ, "XDG_CACHE_HOME": str(self.place)}, **more)

    def done(self, words):
        child = self.start(words)
        said = child.communicate(timeout=HANG)[1].decode(errors="replace")
        if child.returncode:
            raise AssertionError(f"{words}: exit {child.returncode}: {said[-600:]}")

    def words(self, run):
        folder = self.place / run
        if any(path.is_dir() for path in [*folder.glob("checkpoints/[0-9]*"), folder / "best"]):
            head = ["train", "--resume"]
        else:
            # Without a checkpoint a run begins anew.
            subprocess.run(["rm", "-rf", run], cwd=self.place, check=True)
            head = [*COMMANDS[self.kind], "--iterations", str(self.iterations), *self.sets]
        return [self.program, *head, "--run-dir", run, "--device", *self.device, "--quiet", "--json"]

    def meet(self, run):
        """Starts the run and lets it meet a fault. Returns whether it ended well before that."""
        fault, after = self.random.choice(FAULTS), self.random.randint(1, 1 + self.iterations // 4)
        delay, size = self.random.random() * 0.02, self.random.randint(1, 40)
        verifier = self.random.choice(["", "late", "dies", "babbles"])
        (self.place / "fault").write_text(verifier)
        self.faults.append(fault + (f", verifier {verifier}" if verifier and self.kind == "verifier" else ""))
        folder, words = self.place / run, self.words(run)
        before = records(folder)
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size << 10, size << 10))
        child = self.start(words, preexec_fn=limit if fault == "full" else None)
        begun = time.monotonic()
        while fault != "full" and child.poll() is None and records(folder) < before + after:
            time.sleep(0.001)
            if time.monotonic() - begun > HANG:
                break
        time.sleep(delay)
        if child.poll() is None and fault == "kill":
            child.send_signal(signal.SIGKILL)
        if child.poll() is None and fault == "end":
            child.send_signal(signal.SIGTERM)
        if child.poll() is None and fault == "stop":
            for _ in range(3):
                os.killpg(child.pid, signal.SIGSTOP)
                time.sleep(0.05)
                os.killpg(child.pid, signal.SIGCONT)
            child.send_signal(signal.SIGKILL)
        said = child.communicate(timeout=HANG)[1].decode(errors="replace")
        expected = {"kill": [0, -9], "stop": [0, -9], "end": [0, -15], "full": [0, 1]}[fault]
        if child.returncode not in expected or "panicked" in said:
            raise AssertionError(f"{fault}: exit {child.returncode}: {said[-600:]}")
        if fault == "full" and child.returncode and "error: " not in said:
            raise AssertionError(f"a full disk without an error: {said[-600:]}")
        return self.is_done(folder)

    def is_done(self, run):
        return records(run) >= self.iterations and (run / f"checkpoints/{self.iterations:08}").is_dir()

    def run(self, count):
        self.done(self.words("whole"))
        expected = content(self.place / "whole")
        for _ in range(count):
            if self.meet("run"):
                break
        (self.place / "fault").write_text("")
        if not self.is_done(self.place / "run"):
            self.done(self.words("run"))
        found = content(self.place / "run")
        if found[1] != expected[1]:
            raise AssertionError(f"records of the iterations {found[1]}")
        different = [name for name, digest in expected[0].items() if found[0].get(name) != digest]
        if different:
            raise AssertionError(f"other bytes: {different}")


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1][len("usage: "):])
    parser.add_argument("program")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", type=int, default=60)
    parser.add_argument("--case", type=int)
    options = parser.parse_args()
    program, number, met, failures = str(Path(options.program).resolve()), options.case or 0, {}, 0
    while sum(met.values()) < options.faults:
        with tempfile.TemporaryDirectory() as place:
            case = Case(program, options.seed, number, Path(place))
            try:
                case.run(case.random.randint(2, 8))
                outcome = "ok"
            except (AssertionError, subprocess.TimeoutExpired, OSError) as error:
                outcome, failures = f"FAILED: {error}", failures + 1
        for fault in case.faults:
            met[fault] = met.get(fault, 0) + 1
        print(f"case {number} of seed {options.seed}, {case.kind}, {case.iterations} iterations, "
              f"{len(case.faults)} faults: {outcome}", flush=True)
        if options.case is not None:
            break
        number += 1
    print(f"{sum(met.values())} faults in {number} cases, {failures} failures: {met}")
    sys.exit(failures > 0)


main()
