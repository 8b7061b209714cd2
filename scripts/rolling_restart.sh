#!/usr/bin/env bash
# Restarts a running stack one process at a time, without a failed request: a worker drains, ends,
# starts and is in use again before the next one's turn; the proxy's successor takes its socket over.
# The stack is one of scripts/disagg.sh (KEEP_RUNNING=1) or of `triptych serve`. Flags and variables
# are those of `triptych restart` (--help), such as:
#
#   LOG_PATH    folder of the stack's logs, if it is not ./logs
#   --roles encode,decode    only the workers of these roles
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec "${VENV:-.venv}/bin/python" -m triptych restart "$@"
