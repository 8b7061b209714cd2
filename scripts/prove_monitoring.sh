#!/usr/bin/env bash
# Shows that dashboards and alerts work: starts the demonstration model's encode, prefill and decode
# workers with master and proxy, a Prometheus that scrapes them with deploy/prometheus, and a load of
# questions about pictures; asks every query of the dashboards; kills the decode worker and follows
# the alerts. About two minutes. Not part of CI: it needs Prometheus (Debian: apt-get install
# prometheus), or the path of its program in PROMETHEUS. VENV: a virtual environment that has the
# project already. Arguments go to `python -m scripts.monitoring` (--help).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PROMETHEUS="${PROMETHEUS:-$(command -v prometheus || true)}"
[ -n "$PROMETHEUS" ] || { echo "error: no Prometheus; install it, or give its path in PROMETHEUS" >&2; exit 1; }
[ -n "${VENV:-}" ] || scripts/setup.sh
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" # what is started is of this checkout, too
exec "${VENV:-.venv}/bin/python" -m scripts.monitoring --prometheus "$PROMETHEUS" "$@"
