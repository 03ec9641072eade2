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

source tools.sh
node_packages

# A crate elsewhere does not find the options for browsers by itself.
options=(--config "$here/profile.toml")
case $crate in "$(cd .. && pwd)"/*) ;; *) options+=(--config "$here/../.cargo/config.toml") ;; esac

# The most bytes that the modules of Grove's own page may have, as a server sends them.
watch_limit=1000000
train_limit=3000000
text_limit=1300000

out="$CARGO_TARGET_DIR/$target/page"
new="$out/dist"
rm -rf "$new"
mkdir -p "$new/run" "$new/policies"

# module CRATE NAME LIMIT LEVEL OPTIMISATION [OPTIONS...]: the crate, as a module of this name, its own code and
# Grove's compiled at this level.
module() {
    local crate=$1 name=$2 limit=$3 level=$4 optimisation=$5 own built size package
    shift 5
    own=$(sed -n 's/^name = "\(.*\)"$/\1/p' "$crate/Cargo.toml" | head -1)
    for package in grove-rl grove-web grove-web-base "$own"; do
        set -- "$@" --config "profile.page.package.$package.opt-level=$level"
    done
    built=$(cd "$crate" && cargo build --lib --profile page --target "$target" "${options[@]}" \
        --message-format json-render-diagnostics "$@" | node "$here/built.mjs" "$crate")
    "$(bindgen "$crate")" --target web --no-typescript --remove-name-section --out-name "$name" --out-dir "$new" "$built"
    node_modules/.bin/wasm-opt "$optimisation" "$new/${name}_bg.wasm" -o "$new/${name}_bg.wasm"
    size=$(gzip -9 <"$new/${name}_bg.wasm" | wc -c)
    echo "${name}_bg.wasm: $(stat -c %s "$new/${name}_bg.wasm") bytes, $size gzipped"
    if [ "$dist" = "$here/dist" ] && [ "$size" -gt "$limit" ]; then
        echo "that is more than the $limit that it may have" >&2
        exit 1
    fi
}

# What shows is as small as it can be; what trains is as fast as it can be, where that matters: for every browser,
# and for those that multiply and add in one instruction.
relaxed=(--config "target.$target.rustflags=['-C', 'target-feature=+relaxed-simd']")
module "$crate" watch "$watch_limit" '"z"' -Oz --config 'profile.page.opt-level="z"'
module "$crate" train "$train_limit" 3 -O3 --features grove-web/train
module "$crate" train-relaxed "$train_limit" 3 -O3 --features grove-web/train "${relaxed[@]}"
module "$here/text" text "$text_limit" 3 -O3
module "$here/text" text-relaxed "$text_limit" 3 -O3 "${relaxed[@]}"

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
