"""Files alone, and shared memory alone."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

import numpy as np

from benchmarks.bench_transport.raw.base import Bytes, Ranges, Raw


class RawFiles(Raw):
    """A file for each granule, written beside its place and renamed; read into the region."""

    def __init__(self, folder: Path, nbytes: int) -> None:
        self._folder = self._remote = folder / f"raw-{os.getpid()}"
        self._folder.mkdir(parents=True)
        self.memory = np.zeros(nbytes, np.uint8)

    def describe(self) -> bytes:
        return str(self._folder).encode()

    def connect(self, description: bytes) -> None:
        self._remote = Path(description.decode())

    def write(self, ranges: Ranges) -> float:
        begun = time.perf_counter()
        view = self.memory.data
        for there, _, size in ranges:
            temporary = self._folder / f"{there}.tmp"
            with temporary.open("wb", buffering=0) as file:
                file.write(view[there : there + size])
            temporary.rename(self._folder / str(there))
        return time.perf_counter() - begun

    def read(self, ranges: Ranges) -> float:
        begun = time.perf_counter()
        view = self.memory.data
        for there, here, size in ranges:
            with (self._remote / str(there)).open("rb", buffering=0) as file:
                file.readinto(view[here : here + size])
        return time.perf_counter() - begun

    def close(self) -> None:
        for path in self._folder.iterdir():
            path.unlink()
        self._folder.rmdir()


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
