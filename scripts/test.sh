#!/usr/bin/env bash
# Sets up what is missing, then checks style and types and runs the tests. Arguments go to pytest.
# As many test processes run side by side as the machine has cores and memory for; a file's tests
# run in one of them (tests/conftest.py). Each computes with one thread: they share the cores.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export EXTRAS=dev,grpc,nixl,quant,ucx,video HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error UCX_NET_DEVICES=lo OMP_NUM_THREADS=1
scripts/setup.sh
scripts/check.sh
exec "${VENV:-.venv}/bin/python" -m pytest -n auto --dist loadfile --no-loadscope-reorder "${@:-tests}"
