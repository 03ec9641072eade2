# Tools of the page and of the browser's tests, installed where they are missing. To be sourced; sets
# $bindgen, the program wasm-bindgen of the library's version, by $lock or else Grove's Cargo.lock.
tools="${XDG_CACHE_HOME:-$HOME/.cache}/grove-tools"

version=$(sed -n '/^name = "wasm-bindgen"$/{n;s/^version = "\(.*\)"$/\1/p}' \
    "${lock:-$(dirname "${BASH_SOURCE[0]}")/../Cargo.lock}")
bindgen="$tools/wasm-bindgen-$version/bin/wasm-bindgen"
if ! [ -x "$bindgen" ]; then
    # It runs for seconds: not worth optimising for minutes.
    CARGO_PROFILE_RELEASE_OPT_LEVEL=1 \
        cargo install --quiet wasm-bindgen-cli --version "$version" --root "$tools/wasm-bindgen-$version"
fi

# The packages of the package-lock.json in this folder.
node_packages() {
    if ! [ -e node_modules/.package-lock.json ] || [ package-lock.json -nt node_modules/.package-lock.json ]; then
        npm ci
    fi
}
