#!/bin/sh
# Compares language models as llama.cpp computes them with Grove, 64 greedy tokens each:
#
#   exported_models.sh FOLDER PROGRAM     FOLDER has node-llama-cpp (`npm i node-llama-cpp --ignore-scripts`)
#
# A fresh model, trained for a moment; adapters for it, merged and apart; and SmolLM2, if it has been fetched.
set -eu
here=$(cd "$(dirname "$0")" && pwd) tools=$(cd "$1" && pwd)
program=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
compare() { node "$here/llama_cpp.mjs" "$tools" "$program" "$@"; }

train() { "$program" train add --device cpu --quiet --iterations 20 "$@" >/dev/null 2>&1; }
train --run-dir run
"$program" export run --out run.gguf
"$program" export run --out half.gguf --outtype f16
for file in run half; do compare $file.gguf '12+34=' 64; done

train --model run/model --run-dir adapted --set lora.r=4 --set fit.iterations=0 --set optimizer.learning_rate=1e-2
"$program" export adapted --merge --out merged.gguf
"$program" export adapted --out apart.gguf
compare merged.gguf '12+34=' 64
compare run.gguf '12+34=' 64 adapted/model apart.gguf

smollm2=${XDG_CACHE_HOME:-$HOME/.cache}/grove/SmolLM2-135M-Instruct.Q4_1.gguf
if [ -f "$smollm2" ]; then
    "$program" export "$smollm2" --out smollm2.gguf
    compare smollm2.gguf 'The capital of France is' 64
fi
