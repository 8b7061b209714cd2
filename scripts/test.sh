#!/usr/bin/env bash
# Sets up what is missing, then checks style and types and runs the tests. Arguments go to pytest.
# Half as many test processes again as the machine has cores run side by side, if it has the memory;
# a file's tests run in one of them (tests/conftest.py). Each computes with one thread: they share
# the cores. Types are checked beside the tests, in the time that these leave; the layers are among
# the tests.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export EXTRAS=dev,grpc,nixl,quant,ucx,video HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error UCX_NET_DEVICES=lo OMP_NUM_THREADS=1
unset PYTHONDONTWRITEBYTECODE # hundreds of processes import the same modules: one compiles them
scripts/setup.sh
scripts/check.sh style
[ $# -eq 0 ] || scripts/check.sh layers
types=$(mktemp)
trap 'rm -f "$types"' EXIT
nice -n 19 scripts/check.sh types >"$types" 2>&1 &
checked=0 passed=0
"${VENV:-.venv}/bin/python" -m pytest -n auto --dist loadfile --no-loadscope-reorder "${@:-tests}" || passed=$?
wait $! || checked=$?
cat "$types"
exit $((passed ? passed : checked))
