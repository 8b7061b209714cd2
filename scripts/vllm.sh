# Sourced by disagg.sh where ENGINE=vllm: `vllm serve` workers with the connectors of vLLM's own
# disaggregated example, their KV events, and the master told of them, as they cannot register.

# vllm_check: die unless VLLM can be run
vllm_check() {
    command -v "$VLLM" >/dev/null ||
        die "VLLM=$VLLM is no executable: install vLLM in an environment of its own, then VLLM=.../bin/vllm"
}

# ec_config ROLE: --ec-transfer-config for ec_producer or ec_consumer
ec_config() {
    printf '{"ec_connector": "ECExampleConnector", "ec_role": "%s",
        "ec_connector_extra_config": {"shared_storage_path": "%s"}}' "$1" "$EC_SHARED_STORAGE_PATH"
}

# kv_config: --kv-transfer-config; kv_both, so that a decode worker can also prefill
kv_config() {
    local device=""
    [ -z "$VLLM_KV_BUFFER_DEVICE" ] || device=", \"kv_buffer_device\": \"$VLLM_KV_BUFFER_DEVICE\""
    printf '{"kv_connector": "NixlConnector", "kv_role": "kv_both"%s}' "$device"
}

# events_config NUMBER: --kv-events-config of the worker with this number
events_config() {
    printf '{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:%d",
        "replay_endpoint": "tcp://*:%d"}' "$((EVENTS_PORT + 2 * $1))" "$((EVENTS_PORT + 2 * $1 + 1))"
}

# vllm_workers ROLE COUNT PORT DEVICES MEMORY FIRST: ROLE is encode, prefill, decode or
# prefill_decode; FIRST numbers the workers over all roles, for their events and side channels
vllm_workers() {
    local role=$1 count=$2 port=$3 devices=$4 memory=$5 first=$6 i flags name
    for ((i = 0; i < count; i++)); do
        flags=(--enforce-eager --enable-request-id-headers --max-num-seqs "$MAX_NUM_SEQS")
        [ "$MAX_MODEL_LEN" = 0 ] || flags+=(--max-model-len "$MAX_MODEL_LEN")
        case "$role" in
            encode)
                flags+=(--no-enable-prefix-caching --max-num-batched-tokens 114688
                    --ec-transfer-config "$(ec_config ec_producer)")
                ;;
            *)
                flags+=(--kv-events-config "$(events_config "$((first + i))")")
                [ "$NUM_E" = 0 ] || flags+=(--ec-transfer-config "$(ec_config ec_consumer)")
                [ "$role" = prefill_decode ] || flags+=(--kv-transfer-config "$(kv_config)")
                ;;
        esac
        name=$role
        [ "$role" != prefill_decode ] || name=decode
        # shellcheck disable=SC2086 # VLLM_FLAGS are words
        start "$name-$i" env "$AFFINITY=$(device "$devices" "$i")" \
            VLLM_NIXL_SIDE_CHANNEL_PORT=$((SIDE_PORT + first + i)) \
            "$VLLM" serve "$MODEL" --host "$HOST" --port $((port + i)) \
            --gpu-memory-utilization "$memory" "${flags[@]}" $VLLM_FLAGS
    done
}

# vllm_list ROLE COUNT PORT FIRST: tell the master of workers that are up
vllm_list() {
    local role=$1 count=$2 port=$3 first=$4 i number events
    for ((i = 0; i < count; i++)); do
        number=$((first + i))
        events=""
        if [ "$role" != encode ]; then
            events="{\"endpoint\": \"tcp://$HOST:$((EVENTS_PORT + 2 * number))\",
                \"replay\": \"tcp://$HOST:$((EVENTS_PORT + 2 * number + 1))\"}"
        fi
        ADMIN_API_KEY="$ADMIN_API_KEY" "$PYTHON_BIN" scripts/add_instance.py "$MASTER_URL" \
            "{\"role\": \"$role\", \"url\": \"http://$HOST:$((port + i))\", \"events\": [$events]}"
    done
}
