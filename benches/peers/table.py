"""Merges the JSON objects of one session into a table of Grove and its peers.

    table.py DIR [--json FILE]

DIR contains a file WORK.WHO.ROUND.json per run; WHO is `grove` or a peer. Rates are medians over rounds of the
runs' medians, with the range of all runs. Ratios are taken within a round and shown as the median over rounds. A
dash marks a missing measurement.
"""

import argparse
import json
import os
import platform
import statistics
from pathlib import Path

FIGURES = {
    "rules only": "rules_steps_per_second",
    "rules + policy": "policy_steps_per_second",
    "trained": "trained_steps_per_second",
}


def read(folder):
    """Reads {work: {who: {round: object}}} in the order of the runs; skips unreadable files."""
    runs = {}
    for path in sorted(folder.glob("*.*.*.json"), key=lambda path: path.stat().st_mtime_ns):
        work, who, number, _ = path.name.split(".")
        try:
            content = json.loads(path.read_text())
        except ValueError:
            continue
        runs.setdefault(work, {}).setdefault(who, {})[int(number)] = content
    return runs


def merged(rounds, key):
    """Returns the rate over all rounds, or None."""
    figures = [run[key] for run in rounds.values() if run.get(key)]
    if not figures:
        return None
    return {
        "median": statistics.median(f["median"] for f in figures),
        "min": min(f["min"] for f in figures),
        "max": max(f["max"] for f in figures),
    }


def ratio(peer, grove, key):
    """Returns the ratio of Grove's rate to the peer's, or None."""
    both = [n for n in peer if n in grove and peer[n].get(key) and grove[n].get(key)]
    ratios = [grove[n][key]["median"] / peer[n][key]["median"] for n in both]
    if not ratios:
        return None
    return {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}


def rows(runs):
    for work, by_who in runs.items():
        grove = by_who.get("grove", {})
        peers = {who: rounds for who, rounds in by_who.items() if who != "grove"}
        for who, rounds in (peers or {"none": {}}).items():
            one = next(iter((rounds or grove).values()))
            for what, key in FIGURES.items():
                if rounds and merged(rounds, key) is None:
                    continue  # this peer does not measure it
                yield {
                    "work": work,
                    "what": what,
                    "num_envs": one.get("num_envs"),
                    "num_steps": one.get("num_steps"),
                    "hidden": one.get("hidden"),
                    "peer_name": one.get("peer", "none"),
                    "peer_threads": sorted({run["threads"] for run in rounds.values()}),
                    "peer": merged(rounds, key),
                    "grove": merged(grove, key),
                    "ratio": ratio(rounds, grove, key),
                }


def show(figure):
    if figure is None:
        return "-"
    return f"{figure['median']:.2e} ({figure['min']:.1e} to {figure['max']:.1e})"


def show_ratio(figure):
    if figure is None:
        return "-"
    digits = lambda x: f"{x:.1f}" if x < 10 else f"{x:.0f}"
    return f"{digits(figure['median'])} ({digits(figure['min'])} to {digits(figure['max'])})"


def print_table(lines):
    widths = [max(len(cell) for cell in column) for column in zip(*lines)]
    for i, line in enumerate(lines):
        print("| " + " | ".join(f"{cell:{w}}" for cell, w in zip(line, widths)) + " |")
        if i == 0:
            print("|" + "|".join("-" * (w + 2) for w in widths) + "|")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    runs = read(args.folder)
    table = list(rows(runs))
    lines = [["what", "peer", "peer, steps/s", "Grove, steps/s", "ratio"]]
    for row in table:
        hidden = ",".join(map(str, row["hidden"] or []))
        threads = " or ".join(map(str, row["peer_threads"]))
        threads += " thread" if threads == "1" else " threads"
        peer = f"{row['peer_name']}, {threads}" if row["peer_threads"] else row["peer_name"]
        game, _, variant = row["work"].partition("-")
        game += f" ({variant})" if variant.isalpha() else ""
        what = f"{game}, hidden {hidden}: {row['what']}"
        lines.append([what, peer, show(row["peer"]), show(row["grove"]), show_ratio(row["ratio"])])
    every = [run for by in runs.values() for rounds in by.values() for run in rounds.values()]
    versions, loads = {}, []
    for run in every:
        versions |= run.get("versions", {})
        loads += [run["load"]] if "load" in run else []
    cores = sorted({run["cores"] for run in every if "cores" in run}) or [os.cpu_count()]
    print_table(lines)
    print()
    print("medians (lowest to highest); ratio: Grove's median over the peer's, in the same round")
    print("cores:", *cores, end="")
    if loads:
        print(f"; load before the runs: {min(loads):.1f} to {max(loads):.1f}", end="")
    print("; " + ", ".join(f"{name} {version}" for name, version in sorted(versions.items())))
    if args.json:
        summary = {
            "cores": cores,
            "machine": platform.machine(),
            "system": platform.system(),
            "load": loads,
            "versions": versions,
            "rows": table,
            "runs": runs,
        }
        args.json.write_text(json.dumps(summary, indent=2) + "\n")


if __name__ == "__main__":
    main()
