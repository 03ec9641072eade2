"""Shared by the peers: options, timing and the report."""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from importlib.metadata import version

LOAD = os.getloadavg()[0]  # before this process adds to it


def widths(text):
    """Parses hidden layer sizes such as 64 or 64,64."""
    return [int(part) for part in text.split(",")]


def arguments(num_envs, num_steps, hidden):
    """Creates a parser with the options common to all peers, with these defaults."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-envs", type=int, default=num_envs)
    parser.add_argument("--num-steps", type=int, default=num_steps)
    parser.add_argument("--hidden", type=widths, default=hidden, metavar="N[,N]")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--threads", type=int, help="default: one per core")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda for an NVIDIA GPU [cpu]")
    return parser


def cores():
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def use_threads(threads):
    """Restricts this process to some cores; must be called before a library starts its threads."""
    if threads and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def figure(work, steps, repeats, warm_up=2, at_least=0.1):
    """Measures the steps per second of `work`, which performs `steps` steps per call.

    It is called until a measurement has lasted `at_least` seconds or more, as in `grove bench`.
    """
    rates = []
    for i in range(warm_up + repeats):
        made, seconds, started = 0, 0.0, time.perf_counter()
        while seconds < at_least:
            work()
            made += steps
            seconds = time.perf_counter() - started
        if i >= warm_up:
            rates.append(made / seconds)
    return {"median": statistics.median(rates), "min": min(rates), "max": max(rates)}


def captured(work):
    """Captures `work`, whose shapes are fixed, as one CUDA graph; returns a function that replays it.

    `work` runs three times before, so that everything is compiled and allocated.
    """
    import torch

    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work()

    def replay():
        graph.replay()
        return result

    return replay


def report(peer, args, packages, **values):
    """Prints the results as one JSON object."""
    print(
        json.dumps(
            {
                "peer": peer,
                "device": args.device,
                "versions": {"python": platform.python_version()}
                | {name: version(name) for name in packages},
                "cores": cores(),
                "threads": args.threads or cores(),
                "load": LOAD,
                "num_envs": args.num_envs,
                "num_steps": args.num_steps,
                "hidden": args.hidden,
                "repeats": args.repeats,
            }
            | values
        )
    )
    sys.stdout.flush()
