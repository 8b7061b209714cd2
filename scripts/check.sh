#!/usr/bin/env bash
# Style, types and layers; changes nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
EXTRAS="${EXTRAS:-dev,grpc,quant}" scripts/setup.sh
bin="${VENV:-.venv}/bin"
"$bin/ruff" format --check .
"$bin/ruff" check .
"$bin/mypy"
"$bin/python" -m pytest tests/unit/test_layers.py
