"""An EC entry as a safetensors file: complete when it appears, checked when it is read."""

from __future__ import annotations

import contextlib
import stat
from pathlib import Path

import torch
from blake3 import blake3
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from connectors.base import EC_TENSOR, Tensors
from protocol.errors import TransferError

_CHECKSUM = "blake3"


class CorruptFile(TransferError):
    """The file has been read and is not what was written: it helps no reader."""


class UncheckedFile(TransferError):
    """The file is whole and has no checksum: another engine wrote it, and may need it."""


def save(path: Path, tensors: Tensors) -> int:
    """The file's size in bytes. `TransferError` if the disk does not take it."""
    host = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        # safetensors makes files of its own that no other user can read. What is touched here has
        # the mode that the umask allows, which cannot be read without setting it for all threads.
        path.touch()
        mode = stat.S_IMODE(path.stat().st_mode)
        save_file(host, path, metadata={_CHECKSUM: _checksum(host)})
        with contextlib.suppress(OSError):  # a file system without modes
            path.chmod(mode)
        return path.stat().st_size
    except (OSError, SafetensorError) as error:
        raise TransferError(f"the EC file cannot be written: {error}") from error


def load(path: Path, *, unchecked: bool = False) -> Tensors:
    """In memory of its own, as a mapped file that is cut short would end the process.

    `CorruptFile` if the file is not one of tensors [tokens, width], or not what was written;
    `UncheckedFile` if it has no checksum to tell by. With `unchecked` one without (of another
    engine) is taken as it is. Another `TransferError` if it cannot be read here and at this time:
    this process may be out of files or memory.
    """
    try:
        with safe_open(path, framework="pt") as file:
            names = file.keys()
            tensors = {name: file.get_tensor(name).clone() for name in names}
            metadata = file.metadata() or {}
    except SafetensorError as error:
        raise CorruptFile(f"EC file {path.parent.name[:16]} is malformed: {error}") from error
    except (OSError, RuntimeError, MemoryError) as error:
        raise TransferError(f"EC file {path.parent.name[:16]} cannot be read: {error}") from error
    expected = metadata.get(_CHECKSUM)
    refused = UncheckedFile if expected is None else CorruptFile
    if EC_TENSOR not in tensors:
        raise refused(f"EC file {path.parent.name[:16]} holds no tensor '{EC_TENSOR}'")
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if any(len(shape) != 2 for shape in shapes.values()):
        raise refused(f"EC file {path.parent.name[:16]} holds no embeddings: {shapes}")
    if expected is None and not unchecked:
        raise refused(f"EC file {path.parent.name[:16]} has no checksum (load_unchecked)")
    if expected is not None and _checksum(tensors) != expected:
        raise CorruptFile(f"EC file {path.parent.name[:16]} is corrupt")
    return tensors


def _checksum(tensors: Tensors) -> str:
    hasher = blake3()
    for name in sorted(tensors):
        tensor = tensors[name]
        # The same bytes under another name, shape or dtype are another entry.
        hasher.update(f"{name}:{tuple(tensor.shape)}:{tensor.dtype};".encode())
        hasher.update(tensor.contiguous().view(torch.uint8).numpy().data)
    return hasher.hexdigest()
