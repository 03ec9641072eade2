#!/bin/sh
# Builds the documents as a site with search: book.sh [FOLDER] [SOURCE]. Needs mdBook (`cargo install mdbook --locked`).
# FOLDER defaults to target/book. Links to files outside docs/ lead to SOURCE, the checkout's place on the web.
set -eu
cd "$(dirname "$0")/.."
folder=${1:-target/book} source=${2:-}
case $folder in /*) ;; *) folder=$PWD/$folder ;; esac
mdbook build docs --dest-dir "$folder"
rm -f "$folder/book.toml" "$folder/book.sh" "$folder/pictures.sh" "$folder/settings.py"
[ -n "$source" ] || exit 0
sed -i -E "s#href=\"\.\./([^\"]*)\.html([\#\"])#href=\"$source/\1.md\2#g; s#href=\"\.\./#href=\"$source/#g" "$folder"/*.html
