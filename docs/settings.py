#!/usr/bin/env python3
"""Prints the settings' reference, docs/settings.md, from the declarations in a program: docs/settings.py GROVE."""

import json
import re
import subprocess
import sys

HEAD = """# Settings

All settings with their defaults, ranges and meanings. `--set KEY=VALUE` changes one; the section may be left out where the last part of
the name is enough. In a settings file (`--config`) a section is a table. `grove settings NAME` prints a complete file for a game or a task,
and with `--schema` a JSON Schema, from which editors complete it. [Coming from CleanRL, SB3, TRL or PufferLib](coming-from.md) has the names
elsewhere.
"""


def run(*words):
    return subprocess.run([sys.argv[1], "settings", *words], check=True, capture_output=True, text=True).stdout


def settings(name):
    """The settings of a game or a task by their full names."""
    return {setting["key"]: setting for setting in json.loads(run(name, "--json"))["settings"]}


def value(setting):
    # JSON has no infinity.
    return f"`{'inf' if setting['default'] is None else json.dumps(setting['default'])}`"


def table(listed):
    print("\n| setting | default | range | meaning |\n|---|---|---|---|")
    for setting in listed:
        cells = [f"`{setting['key']}`", value(setting), setting["range"] or "", setting["meaning"] or ""]
        print("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")


def subjects(title, of_first, names, what):
    """The settings that all of these have, with the defaults of the first; then those of each, and its other defaults."""
    every = {name: settings(name) for name in names}
    first = every[names[0]]
    common = [key for key in first if all(key in own for own in every.values())]
    print(f"\n## {title}\n\nThe defaults are those of `{names[0]}`{of_first}.")
    sections = {}
    for key in common:
        sections.setdefault(key.rpartition(".")[0], []).append(first[key])
    for section, listed in sections.items():
        print(f"\n### {section or 'Without a section'}")
        table(listed)
    print(f"\n## {what}")
    for name, own in every.items():
        print(f"\n### {name}")
        table(setting for key, setting in own.items() if key not in common)
        other = [f"`{key}` {value(own[key])}" for key in common if own[key]["default"] != first[key]["default"]]
        if other:
            print(f"\nOther defaults: {', '.join(other)}.")


def main():
    text = " ".join(run("--help").split())
    games, tasks = re.search(r"one of: ([\w, -]+), or a language model's task: ([\w, -]+\w)", text).groups()
    print(HEAD, end="")
    subjects("Runs of games", "", games.split(", "), "Games")
    of_tiny = (
        " with the model `tiny`. A pretrained model has others, which its run's `config.toml` shows: no SFT first, and from\n"
        "2^24 parameters on also 100 iterations, 8 prompts and a learning rate of 1e-5"
    )
    subjects("Runs of language models", of_tiny, [*tasks.split(", "), "data"], "Tasks")


main()
