#!/usr/bin/env bash
# Makes the pictures of the README, and with a built page that of its preview: docs/pictures.sh GROVE [DIST].
#
# GROVE is the program, DIST the page that web/build.sh has built; the preview needs Node and Chromium as web/tests/run.sh
# does. A run with a seed always comes to the same policy, so that the animations change with the games and the viewer alone.
set -euo pipefail
grove=$(realpath "${1:?usage: docs/pictures.sh GROVE [DIST]}")
dist=${2:+$(realpath "$2")}
docs=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A learning rate of 0 leaves the policy untrained. The curve has a point for each iteration.
"$grove" train fruit --iterations 1 --set optimizer.learning_rate=0 --run-dir "$work/before"
"$grove" train fruit --set checkpoint.eval_every=1 --run-dir "$work/after"
for name in before after; do
    "$grove" record "$work/$name" --out "$docs/$name.gif" --score --scale 16
done
"$grove" plot "$work/after" --y greedy --out "$docs/curve.svg"

if [ -n "$dist" ]; then
    "$docs/../web/tests/run.sh" "$dist" --measure --shots "$work" "a picture"
    mv "$work/preview-2d.png" "$docs/../web/page/preview.png"
fi
