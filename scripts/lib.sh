# Shared by the launch scripts: start workers in the background, wait for them, stop them by their
# own process ids. Source it; needs bash.

PIDS=()
NAMES=()

# start NAME COMMAND...: run in the background, output to $LOG_PATH/NAME.log
start() {
    local name=$1
    shift
    "$@" >"$LOG_PATH/$name.log" 2>&1 &
    PIDS+=($!)
    NAMES+=("$name")
}

# wait_for NAME URL: until URL answers 200, or fail if the process is gone or TIMEOUT_SECONDS pass
wait_for() {
    local name=$1 url=$2 index
    for index in "${!NAMES[@]}"; do
        [ "${NAMES[$index]}" = "$name" ] && break
    done
    if ! "$PYTHON_BIN" scripts/wait_for_url.py "$url" "${PIDS[$index]}" "$TIMEOUT_SECONDS"; then
        echo "error: $name did not start; the end of $LOG_PATH/$name.log:" >&2
        tail -n 20 "$LOG_PATH/$name.log" >&2
        return 1
    fi
}

# stop_all: end every process started here, first politely
stop_all() {
    trap - EXIT INT TERM
    local pid deadline=$((SECONDS + 15))
    for pid in "${PIDS[@]}"; do
        kill "$pid" 2>/dev/null || true
    done
    for pid in "${PIDS[@]}"; do
        while kill -0 "$pid" 2>/dev/null && [ "$SECONDS" -lt "$deadline" ]; do
            sleep 0.1
        done
        kill -9 "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    PIDS=()
}

# urls HOST PORT COUNT: comma-separated URLs of COUNT consecutive ports
urls() {
    local host=$1 port=$2 count=$3 list="" i
    for ((i = 0; i < count; i++)); do
        list+="${list:+,}http://$host:$((port + i))"
    done
    echo "$list"
}
