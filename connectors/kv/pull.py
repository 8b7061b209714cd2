"""KV over a transport that reads a peer's memory: the whole pool is one registered region, blocks
are read where they lie, nothing is registered or copied aside per request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import zmq

from connectors.base import KVConnector, KVLoad
from connectors.kv.consumer import REGION, ConsumerOptions, KVConsumer
from connectors.kv.producer import KVProducer
from connectors.messages import KVEnd
from connectors.meter import Meter, TransferStats
from connectors.node import Node
from protocol.refs import KVRef


@dataclass(frozen=True)
class PullOptions:
    """`lease_s` without a heartbeat ends an offer; `timeout_s` bounds handshakes and how long a
    producer may be silent."""

    lease_s: float
    timeout_s: float


class PullKV(KVConnector):
    """Producer and consumer at once; owns the "kv" region of its node."""

    def __init__(self, node: Node, compatibility: str, device: str, options: PullOptions) -> None:
        self.meter = Meter("kv", node.transport.name)
        self._node = node
        self._device = device
        self._options = options
        node.share(REGION, compatibility)
        self.producer = KVProducer(node.server, options.lease_s)
        self._consumer: KVConsumer | None = None
        self._blocks: dict[str, tuple[int, ...]] = {}

    def allocate(self, num_blocks: int, elements: int, dtype: torch.dtype) -> torch.Tensor:
        block_bytes = elements * dtype.itemsize
        memory = self._node.transport.allocate(REGION, num_blocks * block_bytes, self._device)
        heartbeat_s = min(self._options.lease_s, self._options.timeout_s) / 3
        options = ConsumerOptions(block_bytes, heartbeat_s, self._options.timeout_s)
        node = self._node
        self._consumer = KVConsumer(node.client, node.peers, node.transport, options, self.meter)
        return memory.view(dtype).view(num_blocks, elements)

    @property
    def consumer(self) -> KVConsumer:
        assert self._consumer is not None
        return self._consumer

    def endpoint(self) -> dict[str, Any]:
        ref = KVRef(
            "",
            self._node.instance_id,
            (),
            0,
            host=self._node.server.host,
            port=self._node.server.port,
            compatibility=self._node.compatibility(REGION),
        )
        return ref.to_params()

    def open(self, request_id: str) -> None:
        self.producer.open(request_id)

    def extend(self, request_id: str, blocks: Sequence[int]) -> None:
        self._blocks[request_id] = tuple(blocks)
        self.producer.extend(request_id, blocks)

    def restart(self, request_id: str) -> None:
        self._blocks.pop(request_id, None)
        self.producer.restart(request_id)

    def end(
        self, request_id: str, num_tokens: int, rope_delta: int, outputs: dict[int, list[int]]
    ) -> KVRef:
        generation = self.producer.generation(request_id)
        end = KVEnd(request_id, generation, num_tokens, rope_delta, outputs)
        self.producer.end(request_id, end)
        return KVRef(
            request_id=request_id,
            instance_id=self._node.instance_id,
            block_ids=self._blocks.pop(request_id, ()),
            num_tokens=num_tokens,
            rope_delta=rope_delta,
            host=self._node.server.host,
            port=self._node.server.port,
            compatibility=self._node.compatibility(REGION),
            generation=generation,
            lease_s=self._options.lease_s,
        )

    def withdraw(self, request_id: str, reason: str) -> None:
        self._blocks.pop(request_id, None)
        self.producer.withdraw(request_id, reason)

    def fetch(self, ref: KVRef, num_blocks: int) -> KVLoad:
        return self.consumer.fetch(ref, num_blocks)

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        return self._node.sockets

    def poll(self) -> list[str]:
        self._node.poll()
        self.consumer.poll()
        return self.producer.poll()

    def stats(self) -> TransferStats:
        return self.meter.snapshot(
            leases_expired=self.producer.leases.expired,
            bytes_held=self.producer.blocks_held * self.consumer.options.block_bytes,
            refused=self._node.server.refused + self._node.client.refused,
        )

    def close(self) -> None:
        self._node.close()

    def check_integrity(self) -> list[str]:
        problems = [f"KV of request {name} is still offered" for name in self.producer.offered]
        problems += [f"KV of request {name} is still fetched" for name in self.consumer.active]
        return problems + self._node.transport.check_integrity()
