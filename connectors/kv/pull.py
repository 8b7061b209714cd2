"""KV over a transport that reads a peer's memory: the whole pool is one registered region, blocks
are read where they lie, nothing is registered or copied aside per request."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from connectors.kv.base import REGION, Fence, KVConnector, KVLoad
from connectors.kv.consumer import KVConsumer
from connectors.kv.fetch import ConsumerOptions
from connectors.kv.producer import KVProducer
from connectors.messages import KVEnd, KVWant
from connectors.meter import Meter, TransferStats
from connectors.node import Node
from connectors.transports.base import Transfer, Transport
from protocol.errors import IncompatiblePeer, TransferError
from protocol.refs import KVRef


@dataclass(frozen=True)
class PullOptions:
    """`lease_s` without a heartbeat ends an offer; `timeout_s` bounds handshakes and how long a
    producer may be silent."""

    lease_s: float
    timeout_s: float


class _Offered:
    """Blocks of `block_bytes` that peers may read. Offers share those that hold a common prefix:
    a block may not be read any more once the last offer of it has ended."""

    def __init__(self, transport: Transport, block_bytes: int) -> None:
        self._transport = transport
        self._block_bytes = block_bytes
        self._offers: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._offers)

    def offer(self, blocks: Sequence[int]) -> Transfer | None:
        """One more offer has these: what to wait for before a peer is told. It waits for nothing
        that another offer has begun and may cancel."""
        self._offers.update(blocks)
        return self._transport.offer(REGION, self._pieces(blocks))

    def release(self, blocks: Sequence[int]) -> None:
        self._offers.subtract(blocks)
        gone = [block for block in blocks if self._offers[block] == 0]
        for block in gone:
            del self._offers[block]
        self._transport.release(REGION, self._pieces(gone))

    def _pieces(self, blocks: Sequence[int]) -> list[tuple[int, int]]:
        return [(block * self._block_bytes, self._block_bytes) for block in blocks]


class _Written(Transfer):
    """Waits for the kernels that write what is offered."""

    def __init__(self, fence: Fence) -> None:
        self._fence = fence

    def poll(self) -> bool:
        return self._fence.passed()

    def cancel(self) -> None:
        """Kernels cannot be called back."""

    @property
    def settled(self) -> bool:
        return self._fence.passed()


class PullKV(KVConnector):
    """Producer and consumer at once; owns the "kv" region of its node."""

    def __init__(self, node: Node, compatibility: str, device: str, options: PullOptions) -> None:
        self.meter = Meter("kv", node.transport.name)
        self._node = node
        self._device = device
        self._options = options
        node.share(REGION, compatibility)
        self.producer = KVProducer(node.server, options.lease_s)
        node.server.reserve(KVWant, REGION)
        self._consumer: KVConsumer | None = None
        self._offered: _Offered | None = None
        self._blocks: dict[str, tuple[int, ...]] = {}
        self._failed: list[str] = []
        self._waiting: dict[str, deque[tuple[Transfer | None, Callable[[], None]]]] = {}

    def allocate(self, num_blocks: int, elements: int, dtype: torch.dtype) -> torch.Tensor:
        block_bytes = elements * dtype.itemsize
        memory = self._node.transport.allocate(
            REGION, num_blocks * block_bytes, self._device, granule=block_bytes
        )
        self._offered = _Offered(self._node.transport, block_bytes)
        # Two of three heartbeats may be lost before a lease lapses or silence passes for death.
        heartbeat_s = min(self._options.lease_s, self._options.timeout_s) / 3
        options = ConsumerOptions(block_bytes, heartbeat_s, self._options.timeout_s)
        node = self._node
        self._consumer = KVConsumer(node.client, node.peers, node.transport, options, self.meter)
        return memory.view(dtype).view(num_blocks, elements)

    @property
    def consumer(self) -> KVConsumer:
        assert self._consumer is not None
        return self._consumer

    @property
    def offered(self) -> _Offered:
        assert self._offered is not None
        return self._offered

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

    def offer(self, request_id: str) -> None:
        self._blocks[request_id] = ()
        self.producer.offer(request_id)

    def advance(self, request_id: str, blocks: Sequence[int], written: Fence | None = None) -> None:
        known, self._blocks[request_id] = self._blocks[request_id], tuple(blocks)
        # A staged transport copies behind the kernels by itself. Peers of a direct one read as soon
        # as they are told, and their reads know nothing of this device's streams.
        if written is not None:
            self._then(request_id, _Written(written), lambda: None)
        # A transport may need time until peers can read a block, as files do; they hear of it then.
        ticket = self.offered.offer(blocks[len(known) :])
        self._then(request_id, ticket, lambda: self.producer.advance(request_id, blocks))

    def _then(self, request_id: str, ticket: Transfer | None, action: Callable[[], None]) -> None:
        """Act once the ticket, and every action for the request before it, is through."""
        waiting = self._waiting.get(request_id)
        if ticket is None and not waiting:
            action()
        else:
            self._waiting.setdefault(request_id, deque()).append((ticket, action))

    def _act(self) -> None:
        for request_id, waiting in list(self._waiting.items()):
            try:
                while waiting and (waiting[0][0] is None or waiting[0][0].poll()):
                    waiting.popleft()[1]()
            except TransferError as error:
                self.producer.release(request_id, error.message)
                self._stop_waiting(request_id)
                self._failed.append(request_id)
            if not waiting:
                self._waiting.pop(request_id, None)

    def _stop_waiting(self, request_id: str) -> None:
        for ticket, _ in self._waiting.pop(request_id, ()):
            if ticket is not None:
                ticket.cancel()

    def restart(self, request_id: str) -> None:
        self._stop_waiting(request_id)
        self.offered.release(self._blocks[request_id])
        self._blocks[request_id] = ()
        self.producer.restart(request_id)

    def seal(
        self, request_id: str, num_tokens: int, rope_delta: int, outputs: dict[int, list[int]]
    ) -> KVRef:
        generation = self.producer.generation(request_id)
        end = KVEnd(request_id, generation, num_tokens, rope_delta, outputs)
        self.producer.complete(request_id)
        self._then(request_id, None, lambda: self.producer.seal(request_id, end))
        return KVRef(
            request_id=request_id,
            instance_id=self._node.instance_id,
            block_ids=self._blocks[request_id],
            num_tokens=num_tokens,
            rope_delta=rope_delta,
            host=self._node.server.host,
            port=self._node.server.port,
            compatibility=self._node.compatibility(REGION),
            generation=generation,
            lease_s=self._options.lease_s,
        )

    def release(self, request_id: str, reason: str) -> None:
        self._stop_waiting(request_id)
        self.producer.release(request_id, reason)
        self._forget(request_id)

    def _forget(self, request_id: str) -> None:
        self.offered.release(self._blocks.pop(request_id, ()))

    def check(self, ref: KVRef) -> None:
        ours = self._node.compatibility(REGION)
        if ref.compatibility not in ("", ours):
            raise IncompatiblePeer(
                f"instance {ref.instance_id} offers KV in the layout '{ref.compatibility}', but "
                f"instance {self._node.instance_id} needs the layout '{ours}'"
            )

    def fetch(self, ref: KVRef, num_blocks: int) -> KVLoad:
        return self.consumer.fetch(ref, num_blocks)

    def poll(self) -> list[str]:
        self._node.poll()
        self.consumer.poll()
        # In this order: what waits to be done for an offer that has ended would not find it.
        ended = self._let_go(self.producer.poll())
        self._act()
        failed, self._failed = self._failed, []
        return ended + self._let_go(failed)

    def _let_go(self, request_ids: list[str]) -> list[str]:
        for request_id in request_ids:
            self._stop_waiting(request_id)
            self._forget(request_id)
        return request_ids

    def stats(self) -> TransferStats:
        return self.meter.snapshot(
            leases_expired=self.producer.leases.expired,
            bytes_held=self.producer.blocks_held * self.consumer.options.block_bytes,
            refused=self._node.refused,
        )

    def close(self) -> None:
        try:
            if self._consumer is not None:
                self._consumer.close()
        finally:
            self._node.leave(REGION)

    def check_integrity(self) -> list[str]:
        problems = [f"KV of request {name} is still offered" for name in self.producer.offered]
        problems += [f"KV of request {name} is still fetched" for name in self.consumer.active]
        if len(self.offered) and not self._blocks:
            problems.append(f"{len(self.offered)} offered KV blocks belong to no offer")
        return problems + self._node.transport.check_integrity()
