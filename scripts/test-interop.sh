#!/usr/bin/env bash
# Our proxy and our encoder together with real vLLM workers on a CPU, and `vllm bench serve` against
# our own workers. Makes .venv-interop first (3.5 GB, three to four minutes), then runs the parts
# that are named: two, three, mixed, ours, scripts, fleet, video, video-encoded, audio, audio-encoded,
# tensor, data, drafting, lora, int8; or all of them. docs/interop.md has the results of each part and
# their dates.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh
scripts/interop/setup.sh
export HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error UCX_NET_DEVICES=lo
exec "${VENV:-.venv}/bin/python" -m scripts.interop --venv "${INTEROP_VENV:-.venv-interop}" "$@"
