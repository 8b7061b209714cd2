#!/usr/bin/env bash
# Starts a master, encode, prefill and decode workers and a proxy on this machine, asks about a
# picture, runs a short serving benchmark, stops everything. A wrong answer is shown and does not
# stop the script; an error does, and the last line names the step that failed. All settings are
# environment variables:
#
#   NUM_E NUM_P NUM_D        workers of each role; NUM_P=0 makes decode workers prefill too;
#                            NUM_E=0 asks in text only, as is done for a text model anyway
#   MODEL                    model directory
#   ENCODE_PORT PREFILL_PORT DECODE_PORT PROXY_PORT    first port of each role
#   MASTER_PORT              where workers register; MASTER=0 for none, the proxy's lists alone
#   MASTER_FLAGS             further flags of the master, separated by spaces
#   GPU_E GPU_P GPU_D        devices of each role, comma-separated, dealt out in turn
#   DEVICE_PLATFORM          cuda or xpu: which affinity variable is set
#   ENGINE                   triptych, or vllm: `vllm serve` workers behind our master and proxy
#   VLLM VLLM_FLAGS          vLLM's executable, further flags of its workers, separated by spaces
#   VLLM_KV_BUFFER_DEVICE    kv_buffer_device of vLLM's NixlConnector, cpu without a GPU
#   EVENTS_PORT SIDE_PORT    first ports of vLLM's KV events (two a worker) and side channels
#   EC_TRANSPORT KV_TRANSPORT    shm, nixl, ucx (EC also shared_storage); a JSON object works too
#   EC_SHARED_STORAGE_PATH   folder of shared storage
#   MAX_NUM_SEQS MAX_MODEL_LEN GPU_MEMORY_UTILIZATION_{E,P,D}
#   NUM_PROMPTS REQUEST_RATE LOG_PATH TIMEOUT_SECONDS
#   KEEP_RUNNING=1           serve until Ctrl-C instead of stopping after the benchmark
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
source scripts/lib.sh
# shellcheck source=scripts/vllm.sh
source scripts/vllm.sh
trap finish EXIT
trap 'exit 130' INT TERM

NUM_E="${NUM_E:-1}" NUM_P="${NUM_P:-1}" NUM_D="${NUM_D:-1}"
MODEL="${MODEL:-models/demo}"
ENCODE_PORT="${ENCODE_PORT:-19534}" PREFILL_PORT="${PREFILL_PORT:-19634}"
DECODE_PORT="${DECODE_PORT:-19734}" PROXY_PORT="${PROXY_PORT:-10001}"
MASTER="${MASTER:-1}" MASTER_PORT="${MASTER_PORT:-10002}"
GPU_E="${GPU_E:-0}" GPU_P="${GPU_P:-0}" GPU_D="${GPU_D:-0}"
DEVICE_PLATFORM="${DEVICE_PLATFORM:-cuda}"
EC_TRANSPORT="${EC_TRANSPORT:-shm}" KV_TRANSPORT="${KV_TRANSPORT:-shm}"
EC_SHARED_STORAGE_PATH="${EC_SHARED_STORAGE_PATH:-/tmp/ec_cache}"
MAX_NUM_SEQS="${MAX_NUM_SEQS:-64}" MAX_MODEL_LEN="${MAX_MODEL_LEN:-0}"
GPU_MEMORY_UTILIZATION_E="${GPU_MEMORY_UTILIZATION_E:-0.1}"
GPU_MEMORY_UTILIZATION_P="${GPU_MEMORY_UTILIZATION_P:-0.4}"
GPU_MEMORY_UTILIZATION_D="${GPU_MEMORY_UTILIZATION_D:-0.7}"
NUM_PROMPTS="${NUM_PROMPTS:-100}" REQUEST_RATE="${REQUEST_RATE:-inf}"
LOG_PATH="${LOG_PATH:-./logs}" TIMEOUT_SECONDS="${TIMEOUT_SECONDS:-600}"
ENGINE="${ENGINE:-triptych}" VLLM="${VLLM:-vllm}" VLLM_FLAGS="${VLLM_FLAGS:-}"
VLLM_KV_BUFFER_DEVICE="${VLLM_KV_BUFFER_DEVICE:-}"
EVENTS_PORT="${EVENTS_PORT:-19834}" SIDE_PORT="${SIDE_PORT:-19934}"
HOST=127.0.0.1
AFFINITY=CUDA_VISIBLE_DEVICES
[ "${DEVICE_PLATFORM,,}" = xpu ] && AFFINITY=ZE_AFFINITY_MASK

for name in NUM_E NUM_P NUM_D; do
    [[ ${!name} =~ ^[0-9]+$ ]] || die "$name=${!name} must be a whole number"
done
[ "$NUM_D" -gt 0 ] || die "NUM_D=$NUM_D must be at least 1"
[[ $ENGINE =~ ^(triptych|vllm)$ ]] || die "ENGINE=$ENGINE: triptych or vllm is expected"
[ "$ENGINE" = triptych ] || vllm_check
[ "$ENGINE" = triptych ] || [ "$MASTER" = 1 ] || die "ENGINE=vllm needs the master: MASTER=1"
[ -d "$MODEL" ] || die "MODEL=$MODEL is not a directory (relative paths start at $PWD)"

STEP="setting up ${VENV:-.venv} (scripts/setup.sh)"
scripts/setup.sh
PYTHON_BIN="${VENV:-.venv}/bin/python"
export HF_HUB_OFFLINE="${HF_HUB_OFFLINE:-1}" TRANSFORMERS_VERBOSITY="${TRANSFORMERS_VERBOSITY:-error}"
export TRIPTYCH_NAMESPACE="${TRIPTYCH_NAMESPACE:-disagg-$$}"

kind=$("$PYTHON_BIN" -m scripts.model_kind "$MODEL") || die "MODEL=$MODEL: $kind"
TEXT_ONLY=""
if [ "$kind" = text ]; then
    echo "$MODEL takes no pictures: no encode worker is started, the questions are text only."
    NUM_E=0
elif [ "$NUM_E" = 0 ]; then
    echo "NUM_E=0: no worker encodes pictures, the questions are text only."
fi
[ "$NUM_E" -gt 0 ] || TEXT_ONLY=1

# On a CPU the workers share the cores; threads beyond them only wait for one another.
cores=$(getconf _NPROCESSORS_ONLN)
threads=$((cores / (NUM_E + NUM_P + NUM_D)))
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$((threads > 0 ? threads : 1))}"

STEP="making the folder LOG_PATH=$LOG_PATH"
mkdir -p "$LOG_PATH"

if [ "$EC_TRANSPORT" = shared_storage ]; then
    EC_TRANSPORT='{"ec_connector": "shared_storage", "ec_connector_extra_config":
        {"shared_storage_path": "'"$EC_SHARED_STORAGE_PATH"'"}}'
fi

# device LIST INDEX: the INDEX-th device of a comma-separated list, in turn
device() {
    local list
    IFS=, read -ra list <<<"$1"
    echo "${list[$(($2 % ${#list[@]}))]}"
}

# workers ROLE MODULE COUNT PORT DEVICES MEMORY [FLAGS...]
workers() {
    local role=$1 module=$2 count=$3 port=$4 devices=$5 memory=$6 i
    shift 6
    for ((i = 0; i < count; i++)); do
        start "$role-$i" env "$AFFINITY=$(device "$devices" "$i")" \
            "$PYTHON_BIN" -m "$module" --model "$MODEL" --host "$HOST" --port $((port + i)) \
            --max-num-seqs "$MAX_NUM_SEQS" --max-model-len "$MAX_MODEL_LEN" \
            --gpu-memory-utilization "$memory" --ec-transfer-config "$EC_TRANSPORT" \
            --master-url "$MASTER_URL" "$@"
    done
}

STEP="starting the services"
MASTER_URL=""
if [ "$MASTER" = 1 ]; then
    MASTER_URL="http://$HOST:$MASTER_PORT"
    ADMIN_API_KEY="${ADMIN_API_KEY:-$("$PYTHON_BIN" -c "import secrets; print(secrets.token_hex())")}"
    # shellcheck disable=SC2086 # MASTER_FLAGS are words
    start master env ADMIN_API_KEY="$ADMIN_API_KEY" \
        "$PYTHON_BIN" -m services.master --host "$HOST" --port "$MASTER_PORT" ${MASTER_FLAGS:-}
    wait_for master "$MASTER_URL/health"
fi

echo "Starting $NUM_E encode, $NUM_P prefill and $NUM_D decode workers and the proxy ..."
decoding=decode
[ "$NUM_P" -gt 0 ] || decoding=prefill_decode
if [ "$ENGINE" = vllm ]; then
    mkdir -p "$EC_SHARED_STORAGE_PATH"
    vllm_workers encode "$NUM_E" "$ENCODE_PORT" "$GPU_E" "$GPU_MEMORY_UTILIZATION_E" 0
    vllm_workers prefill "$NUM_P" "$PREFILL_PORT" "$GPU_P" "$GPU_MEMORY_UTILIZATION_P" "$NUM_E"
    vllm_workers "$decoding" "$NUM_D" "$DECODE_PORT" "$GPU_D" "$GPU_MEMORY_UTILIZATION_D" \
        "$((NUM_E + NUM_P))"
else
    workers encode services.encoder "$NUM_E" "$ENCODE_PORT" "$GPU_E" "$GPU_MEMORY_UTILIZATION_E"
    workers prefill services.prefill "$NUM_P" "$PREFILL_PORT" "$GPU_P" \
        "$GPU_MEMORY_UTILIZATION_P" --kv-transfer-config "$KV_TRANSPORT"
    workers decode services.decode "$NUM_D" "$DECODE_PORT" "$GPU_D" "$GPU_MEMORY_UTILIZATION_D" \
        --kv-transfer-config "$KV_TRANSPORT"
fi
start proxy "$PYTHON_BIN" -m proxy --model "$MODEL" --host "$HOST" --port "$PROXY_PORT" \
    --master-url "$MASTER_URL" \
    --encode-servers-urls "$(urls "$HOST" "$ENCODE_PORT" "$NUM_E")" \
    --prefill-servers-urls "$(urls "$HOST" "$PREFILL_PORT" "$NUM_P")" \
    --decode-servers-urls "$(urls "$HOST" "$DECODE_PORT" "$NUM_D")"

port_of() {
    case "$1" in
        encode-*) echo $((ENCODE_PORT + ${1#*-})) ;;
        prefill-*) echo $((PREFILL_PORT + ${1#*-})) ;;
        decode-*) echo $((DECODE_PORT + ${1#*-})) ;;
        master) echo "$MASTER_PORT" ;;
        proxy) echo "$PROXY_PORT" ;;
    esac
}
if [ "$ENGINE" = vllm ]; then
    for name in "${NAMES[@]}"; do
        [[ $name = proxy ]] || wait_for "$name" "http://$HOST:$(port_of "$name")/health"
    done
    STEP="telling the master of the workers (scripts/add_instance.py)"
    vllm_list encode "$NUM_E" "$ENCODE_PORT" 0
    vllm_list prefill "$NUM_P" "$PREFILL_PORT" "$NUM_E"
    vllm_list "$decoding" "$NUM_D" "$DECODE_PORT" "$((NUM_E + NUM_P))"
    STEP="starting the services"
fi
for name in "${NAMES[@]}"; do
    wait_for "$name" "http://$HOST:$(port_of "$name")/health"
done
echo "All services are up; the OpenAI API is at http://$HOST:$PROXY_PORT/v1"

STEP="asking the server (benchmarks.ask)"
"$PYTHON_BIN" -m benchmarks.ask --base-url "http://$HOST:$PROXY_PORT" --save "$LOG_PATH" \
    ${TEXT_ONLY:+--kinds text,text,text}
STEP="measuring the server (benchmarks.serve)"
"$PYTHON_BIN" -m benchmarks.serve --backend openai-chat --host "$HOST" --port "$PROXY_PORT" \
    --dataset-name demo ${TEXT_ONLY:+--demo-kinds text} \
    --num-prompts "$NUM_PROMPTS" --request-rate "$REQUEST_RATE" --seed 0 \
    --json "$LOG_PATH/serve.json"

STEP="serving"
if [ "${KEEP_RUNNING:-0}" = 1 ]; then
    echo "Serving at http://$HOST:$PROXY_PORT/v1 until Ctrl-C ..."
    wait
fi
echo "Stopping ..."
stop_all
echo "All processes stopped; logs are in $LOG_PATH"
