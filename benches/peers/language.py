"""GRPO of a language model: Grove compared with PyTorch, transformers and TRL, alternately.

    language.py --grove PROGRAM [--rounds N] [--smollm2 FILE] [--trl] [--precision bf16]

The sizes are those of language_torch.py; FILE is SmolLM2-135M in a format that Grove reads. Rates are completion
tokens per second; ratios are taken within a round. Memory is the peak of the whole process.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
FIGURES = {
    "generated": "generated_per_second",
    "learnt from": "learnt_per_second",
    "whole iterations": "trained_per_second",
}


def run(command):
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--grove", required=True, metavar="PROGRAM")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--smollm2", metavar="FILE", help="the larger model instead of tiny")
    parser.add_argument("--trl", action="store_true", help="also measure TRL's trainer")
    parser.add_argument("--precision", choices=["f32", "bf16"], default="f32", help="of both sides")
    parser.add_argument("--micro-batch", type=int, default=0, help="completions per micro-batch of the peers")
    args = parser.parse_args()
    prompts, group, tokens = (8, 8, 32) if args.smollm2 else (32, 8, 9)
    ours = [args.grove, "bench", "add" if args.smollm2 else "sort", "--json", "--repeats", args.repeats]
    ours += ["--model", args.smollm2] if args.smollm2 else []
    ours += ["--precision", args.precision]
    for key, value in dict(num_prompts=prompts, group_size=group, max_new_tokens=tokens).items():
        ours += ["--set", f"generation.{key}={value}"]
    all_ratios, names = {}, ["loop", "transformers"] + (["trl"] if args.trl else [])
    for number in range(args.rounds):
        mine = run(ours)
        medians = ", ".join(f"{what} {mine[key]['median']:.3g}" for what, key in FIGURES.items())
        print(f"round {number + 1}, Grove: {medians}, {mine['peak_memory_bytes'] / 2**20:.0f} MiB", flush=True)
        for who in names:
            peer = [sys.executable, HERE / "language_torch.py", who, "--repeats", args.repeats]
            peer += ["--model", "smollm2" if args.smollm2 else "tiny", "--micro-batch", args.micro_batch]
            peer += ["--precision", args.precision]
            peer += ["--num-prompts", prompts, "--group-size", group, "--completion-tokens", tokens]
            theirs = run(peer + ["--prompt-tokens", round(mine["prompt_tokens"])])
            medians = []
            for what, key in FIGURES.items():
                if key in theirs:
                    ratio = mine[key]["median"] / theirs[key]["median"]
                    all_ratios.setdefault((theirs["peer"], what), []).append(ratio)
                    medians.append(f"{what} {theirs[key]['median']:.3g}")
            memory = theirs["peak_memory_bytes"]
            all_ratios.setdefault((theirs["peer"], "memory"), []).append(mine["peak_memory_bytes"] / memory)
            print(f"round {number + 1}, {theirs['peer']}: {', '.join(medians)}, {memory / 2**20:.0f} MiB", flush=True)
    for (peer, what), ratios in all_ratios.items():
        print(f"Grove / {peer}, {what}: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
