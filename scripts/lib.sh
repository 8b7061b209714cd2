# Shared by the launch scripts: start workers in the background, wait for them, stop them by their
# own process ids. Source it; needs bash.

PIDS=()
NAMES=()
STEP="reading the settings" # what the script is about; finish names it if it fails

# die MESSAGE: end the script with a reason
die() {
    echo "error: $1" >&2
    STEP=""
    exit 1
}

# finish: trap of EXIT; tells which step failed, then ends every process started here
finish() {
    local status=$? logs=""
    [ "${#PIDS[@]}" -eq 0 ] || logs="; logs are in $LOG_PATH"
    case "$status" in
        0) ;;
        130) echo "Interrupted while $STEP$logs" >&2 ;;
        *) [ -z "$STEP" ] || echo "error: $STEP failed with exit status $status$logs" >&2 ;;
    esac
    stop_all
    exit "$status"
}

# start NAME COMMAND...: run in the background, output to $LOG_PATH/NAME.log
start() {
    local name=$1
    shift
    "$@" >"$LOG_PATH/$name.log" 2>&1 &
    PIDS+=($!)
    NAMES+=("$name")
}

# wait_for NAME URL: until URL answers 200; die if the process is gone or TIMEOUT_SECONDS pass
wait_for() {
    local name=$1 url=$2 index
    for index in "${!NAMES[@]}"; do
        [ "${NAMES[$index]}" = "$name" ] && break
    done
    "$PYTHON_BIN" scripts/wait_for_url.py "$url" "${PIDS[$index]}" "$TIMEOUT_SECONDS" && return
    echo "The end of $LOG_PATH/$name.log:" >&2
    tail -n 20 "$LOG_PATH/$name.log" >&2
    if kill -0 "${PIDS[$index]}" 2>/dev/null; then
        die "$name: no answer from $url within $TIMEOUT_SECONDS s (TIMEOUT_SECONDS)"
    fi
    die "$name ended before it was ready; logs are in $LOG_PATH"
}

# stop_all: end every process started here, first politely: requests in progress may end
stop_all() {
    trap - EXIT INT TERM
    local pid drain=${TRIPTYCH_DRAIN_DELAY:-0} timeout=${TRIPTYCH_SHUTDOWN_TIMEOUT:-25} deadline
    deadline=$((SECONDS + ${drain%%.*} + ${timeout%%.*} + 15))
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
