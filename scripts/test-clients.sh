#!/usr/bin/env bash
# The clients that others have written, against a stack of the demonstration model, with a proxy of
# each dialect. Makes .venv-clients first (1.7 GB, a few minutes), then runs all clients, or
# those that are named: see `python -m scripts.clients --help` and docs/clients.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh
scripts/clients/setup.sh "$@"
export HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error UCX_NET_DEVICES=lo
exec "${VENV:-.venv}/bin/python" -m scripts.clients --venv "${CLIENTS_VENV:-.venv-clients}" "$@"
