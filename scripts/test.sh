#!/usr/bin/env bash
# Sets up what is missing, then checks style and types and runs the tests. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export EXTRAS=dev,nixl,ucx HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error UCX_NET_DEVICES=lo
scripts/setup.sh
scripts/check.sh
exec "${VENV:-.venv}/bin/python" -m pytest "${@:-tests}"
