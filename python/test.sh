#!/bin/sh
# Builds the Python package, installs it in a virtual environment and runs its tests.
#
#   python/test.sh [VENV]    VENV defaults to target/python-venv; CARGO_TARGET_DIR is used if set.
set -eu
cd "$(dirname "$0")"
venv=${1:-${CARGO_TARGET_DIR:-../target}/python-venv}
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check "maturin>=1.7,<2" "cloudpickle>=2" "gymnasium>=1.1" numpy pytest
PATH="$venv/bin:$PATH" "$venv/bin/pip" install --quiet --disable-pip-version-check --no-build-isolation .
cd tests
exec "$venv/bin/python" -m pytest --quiet -rs
