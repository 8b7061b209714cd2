#!/usr/bin/env bash
# Makes services/grpc/proto/*_pb2.py and .pyi from the .proto files, in a virtual environment of its
# own. The version is the newest whose modules run with protobuf 6 as well as 7.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv="$(mktemp -d)"
trap 'rm -rf "$venv"' EXIT
python3 -m venv "$venv"
"$venv/bin/pip" install --quiet grpcio-tools==1.76.0
"$venv/bin/python" -m grpc_tools.protoc -I . --python_out=. --pyi_out=. services/grpc/proto/*.proto
