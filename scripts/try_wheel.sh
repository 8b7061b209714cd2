#!/usr/bin/env bash
# What a user of the wheel gets: builds it, installs it into an empty environment outside the
# checkout, starts `triptych serve` there with an empty home directory, asks about pictures and stops.
# Says how long each step took. The wheel is that of the last commit. Arguments go to `triptych serve`.
#
#   PYTHON                          python3 by default
#   PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS    where pip finds packages besides, as a PyTorch for CPUs
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHON="${PYTHON:-python3}"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# timed NAME COMMAND...: run it and say how long it took
timed() {
    local name="$1" start="$SECONDS"
    shift
    "$@"
    echo "$name: $((SECONDS - start)) s"
}

# Of a copy: a build leaves folders beside its source.
build() {
    mkdir "$folder/source" "$folder/home" "$folder/empty"
    git archive HEAD | tar -x -C "$folder/source"
    "$PYTHON" -m pip wheel --quiet --no-deps --wheel-dir "$folder" "$folder/source"
    wheel=$(echo "$folder"/triptych-*.whl)
}

install() {
    "$PYTHON" -m venv "$folder/venv"
    "$folder/venv/bin/pip" install --quiet --disable-pip-version-check "${wheel}[worker]"
}

serve() {
    cd "$folder/empty"
    HOME="$folder/home" "$folder/venv/bin/triptych" serve --ask --no-keep-running "$@"
}

timed "build the wheel" build
timed "install it into an empty environment" install
timed "serve, answer, end" serve "$@"
