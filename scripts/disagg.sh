#!/usr/bin/env bash
# Starts a master, encode, prefill and decode workers and a proxy on this machine, asks about a
# picture, runs a short serving benchmark, stops everything. A wrong answer is shown and does not
# stop the script; an error does, and the last lines name the process that failed. This is
# `triptych serve` with all settings as environment variables (`triptych serve --help`), such as:
#
#   NUM_E NUM_P NUM_D        workers of each role; NUM_P=0 makes decode workers prefill too;
#                            NUM_E=0 asks in text only, as is done for a text model anyway
#   MODEL                    model directory, or a name that the hub's local cache has
#   ENCODE_PORT PREFILL_PORT DECODE_PORT PROXY_PORT    first port of each role
#   ENDPOINT_PORT            the same as PROXY_PORT, which goes before it
#   PREFILL_DECODE_PORT GPU_PD GPU_MEMORY_UTILIZATION_PD
#                            those of decode workers where NUM_P=0
#   MASTER_PORT              where workers register; MASTER=0 for none, the proxy's lists alone
#   WORKER_FLAGS PROXY_FLAGS MASTER_FLAGS    further flags, as on a command line
#   GPU_E GPU_P GPU_D        devices of each role, comma-separated, dealt out in turn
#   DEVICE_PLATFORM          cuda or xpu: which affinity variable is set
#   DEVICE_AFFINITY_ENV      that variable, for other platforms
#   ENGINE                   triptych, vllm (`vllm serve` workers behind our master and proxy), mock
#   VLLM VLLM_FLAGS          vLLM's executable, further flags of its workers
#   VLLM_KV_BUFFER_DEVICE    kv_buffer_device of vLLM's NixlConnector, cpu without a GPU
#   VLLM_PREFILL_ENCODES     0: vLLM's prefill workers never encode, however busy encoders are
#   EVENTS_PORT SIDE_PORT    first ports of vLLM's KV events (two a worker) and side channels
#   EC_TRANSPORT KV_TRANSPORT    shm, nixl, ucx (EC also shared_storage); a JSON object works too
#   EC_SHARED_STORAGE_PATH   folder of shared storage; embeddings of earlier runs are removed
#   MAX_NUM_SEQS (128) MAX_MODEL_LEN GPU_MEMORY_UTILIZATION_{E,P,D}
#   NUM_PROMPTS REQUEST_RATE LOG_PATH TIMEOUT_SECONDS
#   KEEP_RUNNING=1           serve until Ctrl-C instead of stopping after the benchmark
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# die MESSAGE: end the script with a reason
die() {
    echo "error: $1" >&2
    exit 1
}

# What can be known before anything is installed.
export NUM_E="${NUM_E:-1}" NUM_P="${NUM_P:-1}" NUM_D="${NUM_D:-1}" MODEL="${MODEL:-models/demo}"
for name in NUM_E NUM_P NUM_D; do
    [[ ${!name} =~ ^[0-9]+$ ]] || die "$name=${!name} must be a whole number"
done
[ "$NUM_D" -gt 0 ] || die "NUM_D=$NUM_D must be at least 1"
[[ -d $MODEL || $MODEL =~ ^[^/.]+/[^/]+$ ]] ||
    die "MODEL=$MODEL is not a directory (relative paths start at $PWD)"

# inherit NAME OTHER: NAME is OTHER's value, unless it has one of its own
inherit() {
    [ -n "${!1:-}" ] || [ -z "${!2:-}" ] || export "$1=${!2}"
}
inherit PROXY_PORT ENDPOINT_PORT
if [ "$NUM_P" -eq 0 ]; then
    inherit DECODE_PORT PREFILL_DECODE_PORT
    inherit GPU_D GPU_PD
    inherit GPU_MEMORY_UTILIZATION_D GPU_MEMORY_UTILIZATION_PD
fi
export MAX_NUM_SEQS="${MAX_NUM_SEQS:-128}"
storage="${EC_SHARED_STORAGE_PATH:-/tmp/ec_cache}"
if [ "${EC_TRANSPORT:-}" = shared_storage ] && [ -d "$storage" ]; then
    find "$storage" -mindepth 2 -maxdepth 2 -name encoder_cache.safetensors -delete
fi

scripts/setup.sh
export NUM_PROMPTS="${NUM_PROMPTS:-100}" KEEP_RUNNING="${KEEP_RUNNING:-0}"
exec "${VENV:-.venv}/bin/python" -m triptych serve --ask
