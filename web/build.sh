#!/usr/bin/env bash
# Builds the page into web/dist: any static server serves it, and `cargo build` puts it into the program.
# Needs rustup's toolchain with wasm32-unknown-unknown and Node 20 or newer; the rest is installed where
# it is missing.
set -euo pipefail
cd "$(dirname "$0")"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/../target}"

# What is missing is said now, not after minutes of building.
for program in cargo node npm; do
    command -v "$program" >/dev/null || { echo "web/build.sh needs $program, which is not in PATH" >&2; exit 1; }
done
# Cargo builds with the toolchain of this folder, whose libraries of each target lie below its sysroot.
target=wasm32-unknown-unknown
if ! [ -d "$(cd .. && rustc --print sysroot)/lib/rustlib/$target/lib" ]; then
    echo "Rust's library for $target is missing: run \`rustup target add $target\`, then web/build.sh again" >&2
    exit 1
fi

source tools.sh
node_packages

# The most bytes that each module may have, as a server sends them.
watch_limit=1000000
train_limit=3000000

out="$CARGO_TARGET_DIR/$target/page"
dist="$out/dist"
rm -rf "$dist"
mkdir -p "$dist/run" "$dist/policies"

# module NAME LIMIT [FEATURES...]: the crate, as a module of this name.
module() {
    local name=$1 limit=$2
    shift 2
    cargo build --profile page --target "$target" -p grove-web "$@"
    "$bindgen" --target web --no-typescript --remove-name-section --out-name "$name" \
        --out-dir "$dist" "$out/grove_web.wasm"
    node_modules/.bin/wasm-opt -Oz "$dist/${name}_bg.wasm" -o "$dist/${name}_bg.wasm"
    local size
    size=$(gzip -9 <"$dist/${name}_bg.wasm" | wc -c)
    echo "${name}_bg.wasm: $(stat -c %s "$dist/${name}_bg.wasm") bytes, $size gzipped"
    if [ "$size" -gt "$limit" ]; then
        echo "that is more than the $limit that it may have" >&2
        exit 1
    fi
}

# What shows is as small as it can be; what trains is the same source, and faster.
module watch "$watch_limit" --config 'profile.page.package.grove-rl.opt-level="z"' \
    --config 'profile.page.package.grove-web.opt-level="z"'
module train "$train_limit" --features train

cp page/* "$dist"
cp ../assets/policies/*.safetensors "$dist/policies"
# There is no run where no program serves one; `grove watch` answers this path itself.
echo null >"$dist/run/about.json"

rm -rf dist
cp -r "$dist" dist
