#!/usr/bin/env bash
# What needs a GPU: the tests that do, then the attention kernels beside
# PyTorch's, the sampler, and the engine's steps beside the device's copy bandwidth and matmul rate.
# Each command ends within 10 minutes. Tables go to the folder that the first argument names. All
# commands run, also after one that failed; the exit status says whether any did.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh || exit
export HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error
results="${1:-gpu-results}"
python="${VENV:-.venv}/bin/python"
mkdir -p "$results"
failed=0

measure() {  # NAME COMMAND...
    local name="$1"
    shift
    echo "== $name"
    timeout 600 "$@" 2>&1 | tee "$results/$name.txt" || failed=1
}

"$python" -c 'import torch; raise SystemExit(not torch.cuda.is_available())' || {
    echo "no CUDA device: nothing is measured" >&2
    exit 2
}
measure tests "$python" -m pytest -q -m gpu tests/gpu
measure kernels "$python" -m benchmarks.bench_kernels --json "$results/kernels.json"
measure sampler "$python" -m benchmarks.bench_sampler --json "$results/sampler.json"
measure engine "$python" -m benchmarks.bench_gpu --json "$results/engine.json"
measure engine-7b "$python" -m benchmarks.bench_gpu --size 7b --steps-only --json "$results/engine-7b.json"
measure steps "$python" -m benchmarks.step_time --device cuda --markdown "$results/steps.md"
exit "$failed"
