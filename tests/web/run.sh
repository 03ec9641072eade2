#!/usr/bin/env bash
# Builds the checks of this folder and runs them in headless Chromium, with WebGPU on SwiftShader.
# Needs rustup's toolchain with wasm32-unknown-unknown, Node 20 or newer, and Chromium; the rest is
# installed where it is missing. Words after the command pick the checks whose names have them.
set -euo pipefail
cd "$(dirname "$0")"

export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/../../target}"
built="$CARGO_TARGET_DIR/wasm32-unknown-unknown/release"

# The program must be of the library's version. It runs for seconds: not worth optimising for minutes.
version=$(sed -n '/^name = "wasm-bindgen"$/{n;s/^version = "\(.*\)"$/\1/p}' ../../Cargo.lock)
bindgen="${XDG_CACHE_HOME:-$HOME/.cache}/grove-tools/wasm-bindgen-$version"
if ! [ -x "$bindgen/bin/wasm-bindgen" ]; then
    CARGO_PROFILE_RELEASE_OPT_LEVEL=1 \
        cargo install --quiet wasm-bindgen-cli --version "$version" --root "$bindgen"
fi
if ! [ -e node_modules/.package-lock.json ] || [ package-lock.json -nt node_modules/.package-lock.json ]; then
    npm ci
fi

cargo build --release --target wasm32-unknown-unknown -p grove-web-tests
"$bindgen/bin/wasm-bindgen" --target web --no-typescript --out-dir "$built/web" \
    "$built/grove_web_tests.wasm"
node run.mjs "$built/web" "$@"
