#!/usr/bin/env bash
# Builds the checks of this folder and runs them in headless Chromium, with WebGPU on SwiftShader.
# Needs rustup's toolchain with wasm32-unknown-unknown, Node 20 or newer, and Chromium; the rest is
# installed where it is missing. Words after the command pick the checks whose names have them.
set -euo pipefail
cd "$(dirname "$0")"

export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/../../target}"
built="$CARGO_TARGET_DIR/wasm32-unknown-unknown/page"

source ../../web/tools.sh
install_node_packages

# In the profile of the page, most of which is built already.
cargo build --profile page --config ../../web/profile.toml --target wasm32-unknown-unknown -p grove-web-tests
"$(find_bindgen .)" --target web --no-typescript --out-dir "$built/web" \
    "$built/grove_web_tests.wasm"
node run.mjs "$built/web" "$@"
