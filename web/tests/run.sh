#!/usr/bin/env bash
# Runs the checks of the page in headless Chromium: run.sh [DIST] [--own] [--slow] [--program GROVE] [--shots DIR] [WORDS].
# DIST is the built page, web/dist unless given. Needs Node 20 or newer and Chromium; the rest is
# installed where it is missing. What the options and WORDS do is said in run.mjs.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"

source "$here/../tools.sh"
(cd "$here" && install_node_packages)
dist="$here/../dist"
if [ -d "${1:-}" ]; then
    dist="$1"
    shift
fi
exec node "$here/run.mjs" "$dist" "$@"
