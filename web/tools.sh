# Tools of the page and of the browser's tests, installed where they are missing. To be sourced.
tools="${XDG_CACHE_HOME:-$HOME/.cache}/grove-tools"

# Prints the program wasm-bindgen of the version that the workspace of the crate in this folder has locked.
find_bindgen() {
    local workspace version program
    workspace=$(cd "$1" && cargo locate-project --workspace --message-format plain)
    version=$(sed -n '/^name = "wasm-bindgen"$/{n;s/^version = "\(.*\)"$/\1/p}' "$(dirname "$workspace")/Cargo.lock")
    program="$tools/wasm-bindgen-$version/bin/wasm-bindgen"
    if ! [ -x "$program" ]; then
        # It runs for seconds: not worth optimizing for minutes.
        CARGO_PROFILE_RELEASE_OPT_LEVEL=1 \
            cargo install --quiet wasm-bindgen-cli --version "$version" --root "$tools/wasm-bindgen-$version"
    fi
    echo "$program"
}

# Installs the packages of the package-lock.json in this folder.
install_node_packages() {
    if ! [ -e node_modules/.package-lock.json ] || [ package-lock.json -nt node_modules/.package-lock.json ]; then
        npm ci
    fi
}
