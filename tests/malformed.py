#!/usr/bin/env python3
"""Runs a program on malformed files, each through the command that reads it.

usage: malformed.py PROGRAM [FOLDER]

Expects one sentence and exit 1, or success, within two minutes and 1 GB of resident memory; panics, signals, hangs and
memory beyond that fail. Prints a line for each case, and exits 1 if one fails.
"""
import os, resource, shutil, signal, subprocess, sys, tempfile, time
from pathlib import Path

SECONDS, RESIDENT, ADDRESSES = 120, 1 << 30, 16 << 30
COMMANDS = [
    ("st_", lambda p: ["eval", p]),
    ("ds_", lambda p: ["fit", p, "--run-dir", "out"]),
    ("csv_", lambda p: ["import", p, "--label", "label", "--window", "2", "--out", "out"]),
    ("games_", lambda p: ["import", p, "--out", "out"]),
    ("jsonl_", lambda p: ["fit", p, "--dry-run"]),
    ("toml_", lambda p: ["train", "--config", p, "--run-dir", "out"]),
]

CASES = Path(__file__.removesuffix(".py")).absolute()
# Cases that are a model but for the files in their folders, and that model.
QWEN2 = CASES.parent / "language" / "qwen2"
BASE = CASES / "base_model"
MODELS = [
    ("tok_dec_growth", QWEN2),
    ("tok_vocab_same_id", QWEN2),
    ("cfg_", BASE),
    ("hfs_", BASE),
    ("tmpl_", BASE),
    ("tok_", BASE),
]


def completed(path, folder):
    """The path of a case, or of its copy in `folder` with the rest of the model, or with the symbolic link that the file
    `link` names, since not all checkouts have links."""
    if (path / "link").is_file():
        case = Path(shutil.copytree(path, folder / path.name))
        target = (case / "link").read_text()
        (case / "link").unlink()
        (case / "link").symlink_to(target)
        return case
    for start, model in MODELS:
        if path.name.startswith(start):
            shutil.copytree(model, folder / path.name)
            return Path(shutil.copytree(path, folder / path.name, dirs_exist_ok=True))
    return path


def arguments(path):
    for start, command in COMMANDS:
        if path.name.startswith(start):
            return command(str(path))
    return ["generate", str(path), "hi", "--max-new-tokens", "4"]


def run(program, path):
    """The fault of one run, or None, with its seconds, mebibytes and last line."""
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as said:
        case = completed(path, Path(folder))
        begun = time.monotonic()
        # The log has panics that the program turns into sentences.
        child = subprocess.Popen([program, *arguments(case)], cwd=folder, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
                                 env={**os.environ, "GROVE_LOG": "debug"}, preexec_fn=limit, start_new_session=True)
        while True:
            pid, status, usage = os.wait4(child.pid, os.WNOHANG)
            late = time.monotonic() - begun > SECONDS
            if pid:
                break
            if late:
                os.killpg(child.pid, signal.SIGKILL)
                pid, status, usage = os.wait4(child.pid, 0)
                break
            time.sleep(0.02)
        child.returncode = 0
        code, resident = os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024
        said.seek(0)
        text = said.read().decode(errors="replace")
        fault = None
        if "panicked at" in text or code == 101:
            fault = "panic"
        elif late:
            fault = "hang"
        elif code < 0:
            fault = signal.Signals(-code).name
        elif resident > RESIDENT:
            fault = "memory"
        elif code not in (0, 1):
            fault = f"exit {code}"
        line = (text.strip().splitlines() or [""])[-1].replace(str(case), str(path))
        return fault, time.monotonic() - begun, resident >> 20, code, line[:160]


def main():
    program, folder = os.path.abspath(sys.argv[1]), Path(*(sys.argv[2:] or [CASES])).absolute()
    paths = sorted(path for path in folder.iterdir() if path.name != BASE.name)
    faults = 0
    for path in paths:
        fault, seconds, mebibytes, code, line = run(program, path)
        faults += fault is not None
        print(f"{fault or 'ok':8} {path.name:28} exit {code:4} {seconds:5.1f} s {mebibytes:5} MiB  {line}", flush=True)
    print(f"{faults} of {len(paths)} fail")
    sys.exit(faults > 0)


main()
