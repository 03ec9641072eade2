#!/usr/bin/env bash
# Builds the page into web/dist: any static server serves it, and `cargo build` puts it into the program.
#
# build.sh --crate DIR makes a page of the games of another crate into DIR/dist: a cdylib that calls
# `grove_web::page!` (examples/own_page is one). Trained policies in DIR/policies, GAME.safetensors, come with it.
#
# Needs rustup's toolchain with wasm32-unknown-unknown and Node 20 or newer; the rest is installed where
# it is missing.
set -euo pipefail
crate=
while [ $# -gt 0 ]; do
    case $1 in
        --crate) crate=$(cd "${2:?--crate takes a folder}" && pwd); shift 2 ;;
        *) echo "usage: web/build.sh [--crate DIR]" >&2; exit 2 ;;
    esac
done
cd "$(dirname "$0")"
here=$PWD
policies="$here/../assets/policies"
dist="$here/dist"
if [ -n "$crate" ]; then
    policies="$crate/policies"
    dist="$crate/dist"
fi
crate="${crate:-$here/module}"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$here/../target}"

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

lock="$(dirname "$(cd "$crate" && cargo locate-project --workspace --message-format plain)")/Cargo.lock"
source tools.sh
node_packages

# A crate elsewhere does not find the options for browsers by itself.
options=(--config "$here/profile.toml")
case $crate in "$(cd .. && pwd)"/*) ;; *) options+=(--config "$here/../.cargo/config.toml") ;; esac

# The most bytes that each module of Grove's own page may have, as a server sends them.
watch_limit=1000000
train_limit=3300000

out="$CARGO_TARGET_DIR/$target/page"
new="$out/dist"
rm -rf "$new"
mkdir -p "$new/run" "$new/policies"

# module NAME LIMIT LEVEL OPTIMISATION [OPTIONS...]: the crate, as a module of this name, its own code and
# Grove's compiled at this level.
own=$(sed -n 's/^name = "\(.*\)"$/\1/p' "$crate/Cargo.toml" | head -1)
module() {
    local name=$1 limit=$2 level=$3 optimisation=$4 built size package
    shift 4
    for package in grove-rl grove-web "$own"; do
        set -- "$@" --config "profile.page.package.$package.opt-level=$level"
    done
    built=$(cd "$crate" && cargo build --lib --profile page --target "$target" "${options[@]}" \
        --message-format json-render-diagnostics "$@" | node "$here/built.mjs" "$crate")
    "$bindgen" --target web --no-typescript --remove-name-section --out-name "$name" --out-dir "$new" "$built"
    node_modules/.bin/wasm-opt "$optimisation" "$new/${name}_bg.wasm" -o "$new/${name}_bg.wasm"
    size=$(gzip -9 <"$new/${name}_bg.wasm" | wc -c)
    echo "${name}_bg.wasm: $(stat -c %s "$new/${name}_bg.wasm") bytes, $size gzipped"
    if [ "$crate" = "$here/module" ] && [ "$size" -gt "$limit" ]; then
        echo "that is more than the $limit that it may have" >&2
        exit 1
    fi
}

# What shows is as small as it can be; what trains is as fast as it can be, where that matters: for every browser,
# and for those that multiply and add in one instruction.
module watch "$watch_limit" '"z"' -Oz --config 'profile.page.opt-level="z"'
module train "$train_limit" 3 -O3 --features grove-web/train
module train-relaxed "$train_limit" 3 -O3 --features grove-web/train \
    --config "target.$target.rustflags=['-C', 'target-feature=+relaxed-simd']"

cp page/* "$new"
for policy in "$policies"/*.safetensors; do
    if [ -e "$policy" ]; then cp "$policy" "$new/policies"; fi
done
# The page must know which games have trained agents before it knows the games.
node ready.mjs "$new"
# There is no run where no program serves one; `grove watch` answers this path itself.
echo null >"$new/run/about.json"

rm -rf "$dist"
cp -r "$new" "$dist"
echo "the page is in $dist"
