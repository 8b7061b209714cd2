"""The libraries that our transports stand on, used alone and as directly as they can be.

Each moves ranges (offset there, offset here, bytes) of one region into the same region here. What a
library lets one prepare before the first transfer is prepared; nothing is checked, leased or told.
"""

from __future__ import annotations

import mmap
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Ranges = Sequence[Sequence[int]]
GRANULE = 64 << 10


class Raw(ABC):
    """One side. `memory` is its region, uint8[nbytes]."""

    memory: Bytes

    @abstractmethod
    def describe(self) -> bytes:
        """What the other side must know."""

    @abstractmethod
    def connect(self, description: bytes) -> None:
        """Take the other side's description."""

    @abstractmethod
    def read(self, ranges: Ranges) -> float:
        """Seconds of one transfer."""

    def write(self, ranges: Ranges) -> float:
        """Seconds to make ranges readable; nothing has to be done where memory itself is read."""
        return 0.0

    def serve(self) -> None:  # noqa: B027 — most libraries read without the other side
        """What the other side needs of this process while it reads."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything."""


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


class RawNixl(Raw):
    """NIXL's bindings with our agent's configuration. The rows of a transfer are made beforehand;
    what is timed creates, posts, watches and releases the request."""

    def __init__(self, nbytes: int, delay_us: int) -> None:
        import nixl

        self._nixl: Any = nixl
        self._name = f"raw-{os.getpid()}"
        config = nixl.nixlAgentConfig()
        config.useProgThread = True
        config.pthrDelay = delay_us
        config.syncMode = nixl.NIXL_THREAD_SYNC_NONE
        self._agent = nixl.nixlAgent(self._name, config)
        self._backends = [self._agent.createBackend("UCX", {})]
        self.memory = np.zeros(nbytes, np.uint8)
        self._base = self.memory.ctypes.data
        row = (self._base, nbytes, 0, "")
        self._registration = nixl.nixlRegDList(nixl.DRAM_SEG, [row])
        self._agent.registerMem(self._registration, self._backends)
        self._there = 0
        self._peer = ""

    def describe(self) -> bytes:
        metadata: bytes = self._agent.getLocalPartialMD(self._registration, True, self._backends)
        return self._base.to_bytes(8, "big") + metadata

    def connect(self, description: bytes) -> None:
        self._there = int.from_bytes(description[:8], "big")
        peer = self._agent.loadRemoteMD(description[8:])
        self._peer = peer.decode() if isinstance(peer, bytes) else peer

    def read(self, ranges: Ranges) -> float:
        nixl, agent = self._nixl, self._agent
        local = nixl.nixlXferDList(nixl.DRAM_SEG, _rows(self._base, ranges, 1))
        remote = nixl.nixlXferDList(nixl.DRAM_SEG, _rows(self._there, ranges, 0))
        begun = time.perf_counter()
        handle = agent.createXferReq(nixl.NIXL_READ, local, remote, self._peer)
        agent.postXferReq(handle)
        while agent.getXferStatus(handle) != nixl.NIXL_SUCCESS:
            pass
        agent.releaseXferReq(handle)
        return time.perf_counter() - begun

    def close(self) -> None:
        self._agent.invalidateRemoteMD(self._peer)
        self._agent.deregisterMem(self._registration, self._backends)
        del self._agent


def _rows(base: int, ranges: Ranges, column: int) -> npt.NDArray[np.uint64]:
    """(address, size, device) of one side."""
    return np.array([(base + r[column], r[2], 0) for r in ranges], np.uint64)


class RawUcx(Raw):
    """ucxx with our settings, each side progressing its worker without pause. The reader posts a
    tagged receive for every range, right into its place, and names the ranges; the owner answers
    with as many tagged sends out of its region."""

    _REQUEST = 1 << 40
    _MAX_RANGES = 1 << 16

    def __init__(self, nbytes: int, settings: dict[str, str], api: Any, array: Any) -> None:
        self._api, self._array = api, array
        self._context = api.UCXContext(settings, (api.Feature.TAG, api.Feature.WAKEUP))
        self._worker = api.UCXWorker(self._context)
        self.memory = np.zeros(nbytes, np.uint8)
        self._mask = api.UCXXTagMask((1 << 64) - 1)
        self._wanted = np.zeros(3 * self._MAX_RANGES + 1, np.uint64)
        self._sends: list[Any] = []
        self._endpoint: Any = None
        self._asked: Any = None

    def describe(self) -> bytes:
        address: bytes = self._worker.address.tobytes()
        return address

    def connect(self, description: bytes) -> None:
        address = self._api.UCXAddress.create_from_buffer(description)
        self._endpoint = self._worker.create_endpoint_from_worker_address(address, True)

    def read(self, ranges: Ranges) -> float:
        flat = np.array([len(ranges), *(number for r in ranges for number in r)], np.uint64)
        pieces = [self._array(self.memory[here : here + size]) for _, here, size in ranges]
        request, api = self._array(flat), self._api
        begun = time.perf_counter()
        receives = [
            self._endpoint.tag_recv(piece, api.UCXXTag(i), self._mask)
            for i, piece in enumerate(pieces)
        ]
        receives.append(self._endpoint.tag_send(request, api.UCXXTag(self._REQUEST)))
        self._until(receives)
        return time.perf_counter() - begun

    def _until(self, requests: list[Any]) -> None:
        for request in requests:
            while not request.completed:
                self._worker.progress()
            request.check_error()

    def serve(self) -> None:
        tag = self._api.UCXXTag(self._REQUEST)
        if self._asked is None:
            self._asked = self._endpoint.tag_recv(self._array(self._wanted), tag, self._mask)
        self._worker.progress()
        if self._asked.completed:
            self._asked = None
            self._send()
        self._sends = [send for send in self._sends if not send.completed]

    def _send(self) -> None:
        count = int(self._wanted[0])
        rows = self._wanted[1 : 1 + 3 * count].reshape(count, 3).tolist()
        for i, (there, _, size) in enumerate(rows):
            piece = self._array(self.memory[there : there + size])
            self._sends.append(self._endpoint.tag_send(piece, self._api.UCXXTag(i)))

    def close(self) -> None:
        self._endpoint.close_blocking(int(1e9), 1)
        self._worker = self._context = None


def make(transport: str, folder: Path, nbytes: int) -> Raw:
    """The library beneath a transport, with the settings that the transport gives it."""
    if transport == "shm":
        return RawShm(folder, nbytes)
    if transport == "shared_storage":
        return RawFiles(folder, nbytes)
    if transport == "nixl":
        from connectors.transports.nixl_agent import PROGRESS_DELAY_US

        return RawNixl(nbytes, PROGRESS_DELAY_US)
    from connectors.transports import ucx_settings

    return RawUcx(nbytes, ucx_settings.settings("127.0.0.1"), *ucx_settings.load())
