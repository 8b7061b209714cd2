"""An EC entry as a safetensors file: complete when it appears, checked when it is read."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
from blake3 import blake3
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from connectors.base import Tensors
from protocol.errors import TransferError

_CHECKSUM = "blake3"


def save(path: Path, tensors: Tensors) -> None:
    """Write beside `path`, then rename. `TransferError` if the disk does not take it."""
    host = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    temporary = path.with_name(f".{os.getpid()}.{time.monotonic_ns()}.tmp")
    try:
        path.parent.mkdir(exist_ok=True)
        save_file(host, temporary, metadata={_CHECKSUM: _checksum(host)})
        temporary.replace(path)
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        raise TransferError(f"cannot write {path.parent.name[:16]}: {error}") from error


def load(path: Path) -> Tensors:
    """`TransferError` if the file is not one, or not what was written. One without a checksum (of
    another writer) is taken as it is."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise TransferError(f"EC file {path.parent.name[:16]} cannot be read: {error}") from error
    expected = metadata.get(_CHECKSUM)
    if expected is not None and _checksum(tensors) != expected:
        raise TransferError(f"EC file {path.parent.name[:16]} is corrupt")
    return tensors


def _checksum(tensors: Tensors) -> str:
    hasher = blake3()
    for name in sorted(tensors):
        tensor = tensors[name]
        hasher.update(f"{name}:{tuple(tensor.shape)}:{tensor.dtype};".encode())
        hasher.update(tensor.contiguous().view(torch.uint8).numpy().data)
    return hasher.hexdigest()
