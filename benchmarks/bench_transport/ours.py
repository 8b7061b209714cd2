"""One engine's connectors, driven as an engine drives them, or its transport alone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zmq

from benchmarks.bench_transport.raw.base import GRANULE, Bytes, Ranges
from connectors.base import EC_TENSOR, Entry
from connectors.config import ECConfig, KVConfig
from connectors.factory import Connectors
from connectors.kv.base import REGION
from connectors.kv.pull import PullKV
from connectors.node import Node, Readable
from connectors.transports.base import Range, Transport
from protocol.refs import KVRef

_WAIT_MS = 1  # of an engine that waits for bytes
_PATIENCE_S = 60.0
_LEASE_S = 300.0


class Ours:
    """`memory` is the KV pool, uint8[nbytes], in blocks of `GRANULE` bytes. The EC store of a
    producer, or the landing of a consumer, holds twice `nbytes`."""

    def __init__(self, name: str, folder: Path, nbytes: int, *, produces: bool) -> None:
        path = str(folder)
        ec = ECConfig(
            transport=name, path=path, ec_buffer_size=2 * nbytes, landing_size=2 * nbytes,
            lease_s=_LEASE_S,
        )  # fmt: skip
        kv = KVConfig(transport=name, path=path, lease_s=_LEASE_S)
        self._connectors = Connectors(ec, kv)
        self.ec = self._connectors.make_ec("bench", produces=produces)
        made = self._connectors.make_kv("bench", "cpu")
        assert isinstance(made, PullKV)
        self.kv = made
        pool = self.kv.allocate(nbytes // GRANULE, GRANULE // 4, torch.float32)
        self.memory: Bytes = pool.view(torch.uint8).view(-1).numpy()
        self._node: Node = self.kv._node
        self._names = 0
        self._peer = ""
        self._poller = zmq.Poller()
        self._known: set[Readable] = set()

    @property
    def transport(self) -> Transport:
        return self._node.transport

    def turn(self, wait_ms: int = _WAIT_MS) -> None:
        """Once around an engine's loop: sleep until a peer speaks or the wait is over, poll."""
        sockets = set(self._connectors.sockets)
        for new in sockets - self._known:
            self._poller.register(new, zmq.POLLIN)
        self._known = sockets
        self._poller.poll(wait_ms if self._connectors.arm() else 0)
        self.ec.poll()
        self.kv.poll()

    def endpoint(self) -> dict[str, Any]:
        """What a consumer needs to ask for KV."""
        return self.kv.endpoint()

    def connect(self, params: dict[str, Any]) -> None:
        """Shake hands with a producer, as the first fetch from it would."""
        address = (params["remote_host"], params["remote_port"])
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            peer = self._node.peers.ready(address, REGION)
            if peer is not None:
                self._peer = peer
                return
            if time.monotonic() > deadline:
                raise TimeoutError("the peer did not answer the handshake")
            self.turn()

    def read(self, ranges: Ranges) -> float:
        """Seconds of one read over the transport, which is polled without pause."""
        wanted = [Range(*r) for r in ranges]
        transport = self.transport
        begun = time.perf_counter()
        transfer = transport.read(self._peer, REGION, wanted)
        while not transfer.poll():
            transport.poll()
        return time.perf_counter() - begun

    def put(self, nbytes: int) -> tuple[float, str, dict[str, Any]]:
        """Store an entry of so many bytes: seconds, its name, and what its consumer must know."""
        self._names += 1
        name = f"entry-{nbytes}-{self._names}"
        tensor = torch.from_numpy(self.memory[:nbytes]).view(torch.float32).view(-1, 256)
        begun = time.perf_counter()
        params = self.ec.offer(name, Entry({EC_TENSOR: tensor}, ()))
        seconds = time.perf_counter() - begun
        assert params is not None
        return seconds, name, params

    def get(self, name: str, params: dict[str, Any], check: bool = False) -> float:
        """Seconds from asking for an entry until its tensors are here, held all the time.

        With `check`, `AssertionError` unless they are what `memory` holds.
        """
        deadline = time.monotonic() + _PATIENCE_S
        begun = time.perf_counter()
        load = self.ec.fetch(name, params)
        while (tensors := load.poll()) is None:
            self.turn()
            assert time.monotonic() < deadline, "an entry does not come"
        seconds = time.perf_counter() - begun
        if check:
            got = tensors[EC_TENSOR].reshape(-1).view(torch.uint8).numpy()
            assert np.array_equal(got, self.memory[: got.size]), "an entry is not what was put"
        return seconds

    def offer(self, blocks: Sequence[int]) -> tuple[float, dict[str, Any]]:
        """Publish blocks for a request: seconds until a consumer can be told, and its handle."""
        self._names += 1
        request_id = f"request-{self._names}"
        begun = time.perf_counter()
        self.kv.offer(request_id)
        self.kv.advance(request_id, blocks)
        ref = self.kv.seal(request_id, len(blocks), 0, {0: [1]})
        while self.kv.producer.blocks_held < len(blocks):
            self.turn(0)
        return time.perf_counter() - begun, ref.to_params()

    def fetch(self, handle: dict[str, Any], places: Sequence[int]) -> float:
        """Seconds from asking for a request's KV until it is here and its producer says that it was
        held."""
        deadline = time.monotonic() + _PATIENCE_S
        ref = KVRef.from_params(handle)
        begun = time.perf_counter()
        load = self.kv.fetch(ref, len(places))
        load.place(0, places)
        while load.poll() is None:
            self.turn()
            assert time.monotonic() < deadline, "KV does not come"
        return time.perf_counter() - begun

    def close(self) -> None:
        self.ec.close()
        self.kv.close()
