#!/usr/bin/env bash
# Style, types and layers, or those of them that are named; changes nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
EXTRAS="${EXTRAS:-dev,grpc,quant}" scripts/setup.sh
bin="${VENV:-.venv}/bin"
[ $# -gt 0 ] || set -- style types layers
for part in "$@"; do
    case "$part" in
        style)
            "$bin/ruff" format --check .
            "$bin/ruff" check .
            ;;
        types) "$bin/mypy" ;;
        layers) "$bin/python" -m pytest tests/unit/test_layers.py ;;
        *)
            echo "error: '$part' is none of style, types and layers" >&2
            exit 2
            ;;
    esac
done
