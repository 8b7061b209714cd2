#!/usr/bin/env bash
# Sets up what is missing, then checks style and types and runs the tests. Arguments go to pytest.
# Half as many test processes again as the machine has cores run side by side, if it has the memory;
# a file's tests run in one of them. All are forked from a process that has imported and collected
# everything (tests/support/shared_run.py). Where the memory takes one process alone, each folder of
# tests has a new one: what a process has imported and compiled stays with it. Each computes with
# one thread: they share the cores. Types are checked beside the tests, in the time that these
# leave, or before them where the memory takes only one; the layers are among the tests.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export EXTRAS=dev,grpc,nixl,quant,ucx,video HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error UCX_NET_DEVICES=lo OMP_NUM_THREADS=1
unset PYTHONDONTWRITEBYTECODE # hundreds of processes import the same modules: one compiles them
python=${VENV:-.venv}/bin/python
scripts/setup.sh
scripts/check.sh style
[ $# -eq 0 ] || scripts/check.sh layers
types=$(mktemp)
trap 'rm -f "$types"' EXIT
side_by_side=$("$python" -m tests.support.side_by_side)
check_types() { nice -n 19 scripts/check.sh types >"$types" 2>&1; }
checked=0 passed=0
run() { "$python" -m pytest -n auto --dist loadfile --no-loadscope-reorder "$@" || passed=$?; }
if [ "$side_by_side" -gt 1 ]; then
    check_types &
    if [ $# -gt 0 ]; then
        run "$@"
    else
        "$python" -m tests.support.shared_run "$side_by_side" tests || passed=$?
    fi
    wait $! || checked=$?
else
    check_types || checked=$?
    [ $# -eq 0 ] || run "$@"
fi
if [ "$side_by_side" -le 1 ] && [ $# -eq 0 ]; then
    run tests/unit/test_*.py
    for folder in tests/*/ tests/unit/*/; do
        case $folder in */support/ | */unit/ | *__pycache__/) ;; *) run "$folder" ;; esac
    done
fi
cat "$types"
exit $((passed ? passed : checked))
