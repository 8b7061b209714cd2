"""UCX alone."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks.bench_transport.raw.base import Ranges, Raw


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
