"""Shared memory alone."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

import numpy as np

from benchmarks.bench_transport.raw.base import Bytes, Ranges, Raw


class RawShm(Raw):
    """Both sides map one file, the reader copies with NumPy."""

    def __init__(self, folder: Path, nbytes: int) -> None:
        self._path = folder / f"raw-{os.getpid()}"
        self.memory = _mapped(self._path, nbytes, create=True)
        self._nbytes = nbytes
        self._remote = self.memory

    def describe(self) -> bytes:
        return str(self._path).encode()

    def connect(self, description: bytes) -> None:
        self._remote = _mapped(Path(description.decode()), self._nbytes, create=False)

    def read(self, ranges: Ranges) -> float:
        begun = time.perf_counter()
        for there, here, size in ranges:
            self.memory[here : here + size] = self._remote[there : there + size]
        return time.perf_counter() - begun

    def close(self) -> None:
        self._path.unlink()


def _mapped(path: Path, nbytes: int, *, create: bool) -> Bytes:
    with path.open("w+b" if create else "r+b") as file:
        if create:
            file.truncate(nbytes)
        return np.frombuffer(mmap.mmap(file.fileno(), nbytes), np.uint8)
