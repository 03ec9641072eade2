#!/usr/bin/env bash
# Measures Grove, PyTorch and JAX alternately and prints one table. See README.md.
set -euo pipefail

usage() {
    cat <<'END'
usage: run.sh [options]
  --json FILE      also write every figure to FILE
  --rounds N       turns of peer and Grove [3]
  --repeats N      measurements in a run [7]
  --hidden LIST    policies of the fruit catcher, for instance "64 64,64" [64 2048]
  --no-many        not the fruit catcher's 69,632 games, which take the longest
  --threads N      threads of every program [one a core]
  --grove PROGRAM  a built `grove` [build this checkout's]
  --no-grove       only the peers
END
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
cache=${GROVE_PEERS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/grove-peers}
json='' rounds=3 repeats=7 hidden='64 2048' grove='' with_grove=1 many=1
threads=()
while (($#)); do
    case $1 in
        --json) json=$2; shift 2 ;;
        --rounds) rounds=$2; shift 2 ;;
        --repeats) repeats=$2; shift 2 ;;
        --hidden) hidden=$2; shift 2 ;;
        --threads) threads=(--threads "$2"); shift 2 ;;
        --grove) grove=$2; shift 2 ;;
        --no-grove) with_grove=0; shift ;;
        --no-many) many=0; shift ;;
        -h | --help) usage; exit ;;
        *) usage >&2; exit 2 ;;
    esac
done
say() { echo "$*" >&2; }

# Python 3.11 or newer, and a virtual environment with exactly the pinned packages.
new_enough='import sys; sys.exit(sys.version_info < (3, 11))'
python=''
for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
    if "$candidate" -c "$new_enough" 2>/dev/null; then python=$candidate; break; fi
done
if [[ -z $python ]]; then say "Python 3.11 or newer is needed; name one in PYTHON"; exit 1; fi
venv=$cache/venv
if ! cat "$here"/requirements*.txt | cmp -s - "$venv/installed"; then
    say "installing the peers into $venv"
    rm -rf "$venv"
    "$python" -m venv "$venv"
    pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps)
    "${pip[@]}" -r "$here/requirements.txt" >&2
    if ! "$venv/bin/python" -c 'import torch' 2>/dev/null; then
        "${pip[@]}" -r "$here/requirements-cuda.txt" >&2
    fi
    "$venv/bin/python" -c 'import torch, jax, gymnax, optax'
    cat "$here"/requirements*.txt >"$venv/installed"
fi

if ((with_grove)) && [[ -z $grove ]]; then
    say "building Grove"
    target=${CARGO_TARGET_DIR:-$root/target}
    (cd "$root" && CARGO_TARGET_DIR=$target cargo build --release --quiet)
    grove=$target/release/grove
fi

results=$(mktemp -d)
failed=0
trap 'rm -rf "$results"' EXIT

# peer WORK WHO SCRIPT OPTIONS...: one run of a peer. A failed run leaves dashes in the table.
peer() {
    local file=$results/$1.$2.$round.json
    say "round $round: $1, $2"
    "$venv/bin/python" "$here/$3" --repeats "$repeats" "${@:4}" ${threads[@]+"${threads[@]}"} >"$file" ||
        { say "$2 failed"; failed=1; }
}

# compiled WORK OPTIONS...: PyTorch with torch.compile, if there is a C++ compiler.
compiled() {
    command -v "${CXX:-g++}" >/dev/null || { say "no C++ compiler: torch.compile is left out"; return 0; }
    peer "$1" torch-compiled fruit_torch.py "${@:2}" --loss stepwise --compile
}

# ours WORK OPTIONS...: one run of Grove.
ours() {
    ((with_grove)) || return 0
    say "round $round: $1, Grove"
    "$grove" bench --device cpu "${@:2}" --repeats "$repeats" ${threads[@]+"${threads[@]}"} \
        --out "$results/$1.grove.$round.json" >/dev/null ||
        { say "Grove failed"; failed=1; }
}

for ((round = 1; round <= rounds; round++)); do
    for units in $hidden; do
        fruit=(--num-envs 544 --num-steps 100 --hidden "$units")
        work=fruit-${units//,/x}
        peer "$work" torch fruit_torch.py "${fruit[@]}"
        ours "$work" fruit "${fruit[@]}" --group-size 17 --update-epochs 1 --num-minibatches 1
        peer "$work" torch-stepwise fruit_torch.py "${fruit[@]}" --loss stepwise
        peer "$work" torch-looped fruit_torch.py "${fruit[@]}" --loss stepwise --spawn looped
        compiled "$work" "${fruit[@]}"
    done
    # 4,096 levels x 17 starts: enough to make PyTorch's call overhead negligible.
    if ((many)); then
        fruit=(--num-envs 69632 --num-steps 100 --hidden 64)
        peer fruit-many torch-stepwise fruit_torch.py "${fruit[@]}" --loss stepwise --repeats 3
        ours fruit-many fruit "${fruit[@]}" --group-size 17 --update-epochs 1 --num-minibatches 1
        compiled fruit-many "${fruit[@]}" --repeats 3
    fi
    # The peer's policy observes the board, as in gymnax, or the four features of Grove's default.
    catch=(--num-envs 4096 --num-steps 38 --hidden 128 --group-size 8)
    for observation in board features; do
        peer "catch-$observation" jax catch_jax.py "${catch[@]}" --observation "$observation"
        ours "catch-$observation" catch "${catch[@]}" --set catch.rows=20 --set catch.columns=10 \
            --set catch.observation="$observation" --update-epochs 1 --num-minibatches 4
    done
done

"$venv/bin/python" "$here/table.py" "$results" ${json:+--json "$json"}
exit "$failed"
