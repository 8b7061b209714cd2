"""KV blocks between workers on one host: the producer's whole pool lies in shared memory.

The consumer maps the pool once, copies the blocks it was offered, then tells the producer over a
ZMQ side channel. Only the producer's answer that it still held the blocks *at that moment* makes
the copy valid: a lease that lapsed during the copy is found out, never used.
"""

from __future__ import annotations

import math
import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from connectors.base import BlockCopy, KVConnector, KVLoad
from connectors.kv.side_channel import Answer, KVClient, KVServer
from protocol.errors import IncompatiblePeer, TransferError, TransferTimeout
from protocol.refs import KVRef


@dataclass(frozen=True)
class ShmOptions:
    """`host` is where peers reach the side channel, `port` 0 picks a free one; times in seconds."""

    directory: Path
    compatibility: str
    host: str = "127.0.0.1"
    port: int = 0
    lease_s: float = 30.0
    answer_timeout_s: float = 5.0


@dataclass(frozen=True)
class _Peer:
    pool: torch.Tensor


class ShmKV(KVConnector):
    """Producer and consumer at once; one instance per engine."""

    def __init__(self, options: ShmOptions) -> None:
        self._options = options
        self.instance_id = uuid.uuid4().hex
        self._path = options.directory / f"kv-{self.instance_id}"
        self._pool: torch.Tensor | None = None
        self._server = KVServer(options.host, options.port, options.lease_s)
        self._client = KVClient(options.answer_timeout_s)
        self._peers: dict[str, _Peer] = {}

    def allocate(self, num_blocks: int, elements: int, dtype: torch.dtype) -> torch.Tensor:
        self._options.directory.mkdir(parents=True, exist_ok=True)
        size = num_blocks * elements
        with self._path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size * dtype.itemsize)
        flat = torch.from_file(str(self._path), shared=True, size=size, dtype=dtype)
        self._pool = flat.view(num_blocks, elements)
        return self._pool

    def publish(
        self, request_id: str, blocks: Sequence[int], num_tokens: int, rope_delta: int
    ) -> KVRef:
        assert self._pool is not None
        generation = self._server.offer(request_id)
        return KVRef(
            request_id=request_id,
            instance_id=self.instance_id,
            block_ids=tuple(blocks),
            num_tokens=num_tokens,
            rope_delta=rope_delta,
            host=self._options.host,
            port=self._server.port,
            compatibility=self._options.compatibility,
            generation=generation,
            lease_s=self._options.lease_s,
            descriptor={"shape": list(self._pool.shape)},
        )

    def withdraw(self, request_id: str) -> None:
        self._server.withdraw(request_id)

    def fetch(self, ref: KVRef, copies: Sequence[BlockCopy]) -> KVLoad:
        self._check(ref)
        peer = self._peer(ref)
        limit = peer.pool.shape[0]
        if any(not 0 <= copy.source < limit for copy in copies):
            raise IncompatiblePeer(
                f"a block id of request {ref.request_id} is not in 0 … {limit - 1}"
            )
        assert self._pool is not None
        self._pool[[c.target for c in copies]] = peer.pool[[c.source for c in copies]]
        return _ShmLoad(self._client.fetched(ref))

    def _check(self, ref: KVRef) -> None:
        ours = self._options.compatibility
        if ref.compatibility != ours:
            raise IncompatiblePeer(
                f"KV of instance {ref.instance_id} is '{ref.compatibility}', ours is '{ours}'"
            )

    def _peer(self, ref: KVRef) -> _Peer:
        peer = self._peers.get(ref.instance_id)
        if peer is None:
            peer = self._peers[ref.instance_id] = self._map(ref)
        return peer

    def _map(self, ref: KVRef) -> _Peer:
        if not ref.instance_id.isalnum():
            raise IncompatiblePeer(f"'{ref.instance_id[:64]}' is not an instance id")
        assert self._pool is not None
        path = self._options.directory / f"kv-{ref.instance_id}"
        shape = ref.descriptor.get("shape")
        if not isinstance(shape, list) or len(shape) != 2 or shape[1] != self._pool.shape[1]:
            raise IncompatiblePeer(f"KV pool of instance {ref.instance_id} has shape {shape}")
        size = math.prod(shape)
        try:
            if path.stat().st_size != size * self._pool.itemsize:
                raise IncompatiblePeer(f"KV pool of instance {ref.instance_id} has another size")
            flat = torch.from_file(str(path), shared=True, size=size, dtype=self._pool.dtype)
        except (OSError, RuntimeError) as error:
            raise TransferError(f"KV pool of instance {ref.instance_id} is gone: {error}") from None
        return _Peer(flat.view(*shape))

    def decline(self, ref: KVRef) -> None:
        self._client.release(ref)

    def poll(self) -> list[str]:
        self._client.poll()
        return self._server.poll()

    def close(self) -> None:
        self._server.close()
        self._client.close()
        self._peers.clear()
        self._path.unlink(missing_ok=True)

    def check_integrity(self) -> list[str]:
        return [f"KV of request {name} is still offered" for name in self._server.offered]


class _ShmLoad(KVLoad):
    """The copy is done when this is made; what is awaited is the producer's confirmation."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def poll(self) -> bool:
        if self._answer.held is None:
            if time.monotonic() > self._answer.deadline:
                raise TransferTimeout("the producer did not confirm the KV blocks in time")
            return False
        if not self._answer.held:
            raise TransferError("the producer's lease lapsed before the KV blocks were copied")
        return True

    def cancel(self) -> None:
        pass

    @property
    def settled(self) -> bool:
        return True
