#!/usr/bin/env bash
# Makes the clients' virtual environments in .venv-clients (or $CLIENTS_VENV), and the node_modules
# of the clients for Node beside them: 1.7 GB, a few minutes. Does nothing if they are there.
# Each file of requirements is a venv of its own, for not all clients agree on one `openai`. Those of
# guidellm (5.9 GB, as it brings torch for CUDA) and aiperf (1.2 GB) are made only if they are named.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
ROOT="${CLIENTS_VENV:-.venv-clients}"

named=""
for client in guidellm aiperf; do
    [[ " $* " != *" $client "* ]] || named="$named$client-"
done
stamp="$ROOT/.installed-$named$(cat scripts/clients/setup.sh scripts/clients/requirements/*.txt \
    scripts/clients/node/package-lock.json | sha256sum | cut -c1-16)"
if [ ! -e "$stamp" ]; then
    for file in scripts/clients/requirements/*.txt; do
        client="$(basename "$file" .txt)"
        venv="$ROOT/$client"
        case "$client" in
            guidellm | aiperf) [[ "-$named" == *"-$client-"* ]] || continue ;;
        esac
        [ -e "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
        # The files list all packages, those that others need too. Modules are compiled once they are
        # imported, which most never are.
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile \
            --no-deps -r "$file"
    done
    mkdir -p "$ROOT/node"
    cp scripts/clients/node/package.json scripts/clients/node/package-lock.json "$ROOT/node/"
    PATH="$(cd "$ROOT" && pwd)/openai/bin:$PATH" npm ci --silent --no-audit --no-fund --prefix "$ROOT/node"
    touch "$stamp"
fi
