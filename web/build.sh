#!/usr/bin/env bash
# Builds the page into web/dist: any static server serves it, and `cargo build` puts it into the program.
#
# build.sh --crate DIR makes a page of the games of another crate into DIR/dist: a cdylib that calls
# `grove_web::page!` (examples/own_page is one). Trained policies in DIR/policies, GAME.safetensors, come with it.
#
# build.sh --quick leaves out the modules with relaxed SIMD, which train up to a quarter faster in browsers that have it
# and take as long to build again: for work on the page. Without them the page takes the modules for all browsers.
#
# GROVE_SOURCE is the address of the project, for the links to it; GROVE_PAGE that of the published page.
#
# A module is built once from the same content: its files are kept in page-cache beside cargo's, named by a hash of
# all that it is made from.
#
# Needs rustup's toolchain with wasm32-unknown-unknown and Node 20 or newer; the rest is installed where
# it is missing.
set -euo pipefail
crate=
relaxed=1
while [ $# -gt 0 ]; do
    case $1 in
        --crate) crate=$(cd "${2:?--crate takes a folder}" && pwd); shift 2 ;;
        --quick) relaxed=; shift ;;
        *) echo "usage: web/build.sh [--crate DIR] [--quick]" >&2; exit 2 ;;
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

# Missing programs are reported before minutes of building.
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
install_node_packages

# A crate elsewhere does not find the options for browsers by itself.
options=(--config "$here/profile.toml")
case $crate in "$(cd .. && pwd)"/*) ;; *) options+=(--config "$here/../.cargo/config.toml") ;; esac

# The most bytes that the modules of Grove's own page may have, as a server sends them.
watch_limit=400000
train_limit=3150000
text_limit=620000

out="$CARGO_TARGET_DIR/$target/page"
new="$out/dist"
rm -rf "$new"
mkdir -p "$new/run" "$new/policies"

# Prints one hash of all that a module is made from. The program's own files are no part of a module.
hash_sources() {
    (
        cd ..
        rustc -vV
        echo "${RUSTFLAGS:-}"
        find Cargo.toml Cargo.lock build.rs .cargo src shaders assets web/Cargo.toml web/src web/base web/module web/text web/train web/watch \
            web/build.sh web/linker.mjs web/profile.toml web/tools.sh web/package-lock.json -type f \
            ! -path 'src/program/*' ! -path 'assets/policies/*' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum
    ) | sha256sum | cut -c1-16
}

# build_module CRATE NAME LEVEL OPTIMISATION [OPTIONS...]: builds the crate as a module of this name into $out/NAME, its
# own code and Grove's compiled at this level.
build_module() {
    local crate=$1 name=$2 level=$3 optimisation=$4 own built package
    shift 4
    own=$(sed -n 's/^name = "\(.*\)"$/\1/p' "$crate/Cargo.toml" | head -1)
    for package in grove-rl grove-web grove-web-base grove-web-train grove-web-watch "$own"; do
        set -- --config "profile.page.package.$package.opt-level=$level" "$@"
    done
    built=$(cd "$crate" && cargo rustc --lib --profile page --target "$target" --target-dir "$lane" "${options[@]}" \
        --message-format json-render-diagnostics "$@" | node "$here/built.mjs" "$crate")
    rm -rf "${out:?}/$name"
    "$(find_bindgen "$crate")" --target web --no-typescript --remove-name-section --out-name "$name" --out-dir "$out/$name" "$built"
    node_modules/.bin/wasm-opt "$optimisation" "$out/$name/${name}_bg.wasm" -o "$out/$name/${name}_bg.wasm"
}

# add_module CRATE NAME LIMIT [...]: puts the module into the page, from the cache if its content is unchanged.
add_module() {
    local crate=$1 name=$2 limit=$3 kept size
    shift 3
    kept=$cache/$name-$key
    case $crate in
        "$here"/*)
            if ! [ -d "$kept" ]; then
                build_module "$crate" "$name" "$@"
                rm -rf "$cache/$name"-[0-9a-f]* "$cache/new-$name"
                mkdir -p "$cache"
                mv "$out/$name" "$cache/new-$name"
                mv "$cache/new-$name" "$kept"
            fi
            ;;
        *)
            # Only cargo knows the sources of another crate.
            build_module "$crate" "$name" "$@"
            kept=$out/$name
            ;;
    esac
    cp -r "$kept/." "$new"
    size=$(gzip -9 <"$new/${name}_bg.wasm" | wc -c)
    echo "${name}_bg.wasm: $(wc -c <"$new/${name}_bg.wasm") bytes, $size gzipped"
    if [ "$dist" = "$here/dist" ] && [ "$size" -gt "$limit" ]; then
        echo "that is more than the $limit that it may have" >&2
        exit 1
    fi
}

cache=$CARGO_TARGET_DIR/page-cache
key=$(hash_sources)
# Installs what the two lanes below share.
find_bindgen "$crate" >/dev/null
# The module that shows is as small as it can be; those that train are compiled for speed. After that, wasm-opt -O1
# leaves the one with kernels 4 % smaller than -O3. A module without kernels is linked without what compiles them.
without_kernels=(-- -C "linker=$here/linker.mjs")
flags=(--config "target.$target.rustflags=['-C', 'target-feature=+relaxed-simd']")

add_modules_with_kernels() {
    lane=$CARGO_TARGET_DIR
    add_module "$crate" train "$train_limit" 3 -O1 --features grove-web/train
    if [ -n "$relaxed" ]; then
        add_module "$crate" train-relaxed "$train_limit" 3 -O1 --features grove-web/train "${flags[@]}"
    fi
}

add_modules_without_kernels() {
    lane=$CARGO_TARGET_DIR/without-kernels
    add_module "$crate" watch "$watch_limit" '"z"' -Oz --config 'profile.page.opt-level="z"' "${without_kernels[@]}"
    add_module "$here/text" text "$text_limit" 3 -O3 "${without_kernels[@]}"
    if [ -n "$relaxed" ]; then
        add_module "$here/text" text-relaxed "$text_limit" 3 -O3 "${flags[@]}" "${without_kernels[@]}"
    fi
}

# Side by side, since linking a module keeps one core busy for minutes, and in two folders, since cargo locks each.
add_modules_without_kernels &
without_kernels_job=$!
trap 'pkill -P "$without_kernels_job" 2>/dev/null || true' EXIT
add_modules_with_kernels
wait "$without_kernels_job"
trap - EXIT

for file in page/*; do
    if [ -e "$new/${file#page/}" ]; then
        echo "web/$file would replace a module of the same name" >&2
        exit 1
    fi
done
cp page/* "$new"
for policy in "$policies"/*.safetensors; do
    if [ -e "$policy" ]; then cp "$policy" "$new/policies"; fi
done
# The page must know which games have trained agents before it knows the games.
node ready.mjs "$new"
# Without a program that serves it the page shows no run; `grove watch` answers this path itself.
echo null >"$new/run/about.json"

rm -rf "$dist"
cp -r "$new" "$dist"
echo "the page is in $dist"
