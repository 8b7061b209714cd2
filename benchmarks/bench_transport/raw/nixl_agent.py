"""NIXL alone."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.bench_transport.raw.base import Ranges, Raw


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
