"""EC entries as safetensors files, in vLLM's layout: `{root}/{mm_hash}/encoder_cache.safetensors`.

Serves two transports: shared memory (a root under /dev/shm, which readers map without a copy) and
shared storage (any root; a checksum is verified on reading). A file appears complete, by rename,
and never changes; a reader that has mapped it keeps it after the writer has evicted it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from connectors.base import EC_TENSOR, ECConnector, ECLoad, Tensors
from protocol.errors import InvalidRequest, TransferError, TransferTimeout

FILE_NAME = "encoder_cache.safetensors"
_CHECKSUM = "blake3"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")


@dataclass(frozen=True)
class FileStoreOptions:
    """`capacity` in bytes bounds what this instance has put; `load_timeout_s` how long a consumer
    waits for an entry to appear. A `temporary` root goes with the last instance that uses it."""

    root: Path
    capacity: int
    load_timeout_s: float
    checksum: bool
    temporary: bool


@dataclass(frozen=True)
class _Entry:
    """`size` on disk in bytes."""

    size: int
    params: dict[str, Any]


class FileEC(ECConnector):
    def __init__(self, options: FileStoreOptions) -> None:
        self._options = options
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._size = 0
        options.root.mkdir(parents=True, exist_ok=True)

    def _path(self, mm_hash: str) -> Path:
        if not _NAME.fullmatch(mm_hash):
            raise InvalidRequest(f"'{mm_hash[:64]}' cannot name a media item", param="mm_hash")
        return self._options.root / mm_hash / FILE_NAME

    def put(self, mm_hash: str, tensors: Tensors) -> dict[str, Any]:
        path = self._path(mm_hash)
        host = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        metadata = {_CHECKSUM: _checksum(host)} if self._options.checksum else None
        temporary = path.with_name(f".{os.getpid()}.{time.monotonic_ns()}.tmp")
        try:
            path.parent.mkdir(exist_ok=True)
            save_file(host, temporary, metadata=metadata)
            temporary.replace(path)
        except (OSError, SafetensorError) as error:
            temporary.unlink(missing_ok=True)
            raise TransferError(f"cannot store media item {mm_hash[:16]}: {error}") from error
        self._record(mm_hash, _Entry(path.stat().st_size, _params(host)))
        return self._entries[mm_hash].params

    def _record(self, mm_hash: str, entry: _Entry) -> None:
        self._forget(mm_hash)
        self._entries[mm_hash] = entry
        self._size += entry.size
        while self._size > self._options.capacity and len(self._entries) > 1:
            self._remove(next(iter(self._entries)))

    def _forget(self, mm_hash: str) -> None:
        entry = self._entries.pop(mm_hash, None)
        if entry is not None:
            self._size -= entry.size

    def find(self, mm_hash: str) -> dict[str, Any] | None:
        entry = self._entries.get(mm_hash)
        if entry is None:
            return None
        if not self._path(mm_hash).exists():
            self._forget(mm_hash)
            return None
        self._entries.move_to_end(mm_hash)
        return entry.params

    def get(self, mm_hash: str, params: dict[str, Any] | None) -> ECLoad:
        deadline = time.monotonic() + self._options.load_timeout_s
        return _FileLoad(self._path(mm_hash), deadline, self._options.checksum)

    def _remove(self, mm_hash: str) -> None:
        self._forget(mm_hash)
        shutil.rmtree(self._path(mm_hash).parent, ignore_errors=True)

    def clear(self) -> None:
        for mm_hash in list(self._entries):
            self._remove(mm_hash)

    def close(self) -> None:
        """Remove this instance's entries, and a temporary root once it is empty."""
        self.clear()
        if self._options.temporary:
            with contextlib.suppress(OSError):
                self._options.root.rmdir()

    def check_integrity(self) -> list[str]:
        missing = [name for name in self._entries if not self._path(name).exists()]
        problems = [f"EC file of {name[:16]} is gone" for name in missing]
        total = sum(entry.size for entry in self._entries.values())
        if total != self._size:
            problems.append(f"EC files sum to {total} bytes, books say {self._size}")
        return problems


def _params(tensors: Tensors) -> dict[str, Any]:
    size = sum(tensor.nbytes for tensor in tensors.values())
    return {"size_bytes": size, "shape": list(tensors[EC_TENSOR].shape)}


class _FileLoad(ECLoad):
    """Waits for a file to appear."""

    def __init__(self, path: Path, deadline: float, verify: bool) -> None:
        self._path = path
        self._deadline = deadline
        self._verify = verify

    def poll(self) -> Tensors | None:
        if self._path.exists():
            return _read(self._path, self._verify)
        if time.monotonic() > self._deadline:
            name = self._path.parent.name[:16]
            raise TransferTimeout(f"no embedding for media item {name} in time")
        return None

    def cancel(self) -> None:
        pass


def _read(path: Path, verify: bool) -> Tensors:
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise TransferError(f"EC file {path.parent.name[:16]} cannot be read: {error}") from error
    expected = metadata.get(_CHECKSUM)
    if verify and expected is not None and _checksum(tensors) != expected:
        raise TransferError(f"EC file {path.parent.name[:16]} is corrupt")
    return tensors


def _checksum(tensors: Tensors) -> str:
    hasher = blake3()
    for name in sorted(tensors):
        tensor = tensors[name]
        hasher.update(f"{name}:{tuple(tensor.shape)}:{tensor.dtype};".encode())
        hasher.update(tensor.contiguous().view(torch.uint8).numpy().data)
    return hasher.hexdigest()
