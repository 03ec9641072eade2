#!/usr/bin/env bash
# Runs whose ranks are processes of this machine: builds the program with the feature `mpi`, and runs the tests
# that need it. Needs mpirun, an MPI library's headers and libclang (Debian: openmpi-bin libopenmpi-dev
# libclang-dev); elsewhere give GROVE_MPI, a program that has the feature already.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ -z "${GROVE_MPI:-}" ]; then
    # Under a name of its own, so that the usual program stays what it is.
    target="${CARGO_TARGET_DIR:-target}"
    cargo build --release --features mpi --bin grove
    mkdir -p "$target/mpi"
    cp "$target/release/grove" "$target/mpi/grove-mpi"
    export GROVE_MPI="$target/mpi/grove-mpi"
fi
GROVE_MPI=$(realpath "$GROVE_MPI") exec cargo test --release --test suite -- --ignored --test-threads 1 rank
