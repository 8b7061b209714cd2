"""EC over a transport that reads a peer's memory: entries lie in one registered region. Producers
of one host list themselves in a folder, for consumers that were told of none."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from connectors.base import EC_TENSOR, Changed, ECConnector, ECLoad, Entry, no_listener
from connectors.ec.buffer_pool import BufferPool, Landing
from connectors.ec.load import REGION
from connectors.ec.range_allocator import RangeAllocator, aligned
from connectors.ec.reader import ECReader, Sources
from connectors.ec.store import ECStore
from connectors.messages import ECTensor, ECWant
from connectors.meter import Meter, TransferStats
from connectors.node import Node
from connectors.owners import create_locked, locked, make_private
from connectors.side_client import Address
from protocol.errors import ConfigError, TransferError

_PREFIX = "ec-producer-"


class Listing:
    """A producer's address in a folder, for as long as its process lives: a process that
    finds the file without its lock removes it; each looks for such files when it starts."""

    def __init__(self, folder: Path, instance_id: str, address: Address) -> None:
        self._path = folder / f"{_PREFIX}{instance_id}"
        try:
            make_private(folder, "set TRIPTYCH_NAMESPACE to another name")
            # For what it removes: the files of producers that died.
            producers(folder)
            self._file: int | None = create_locked(self._path)
            # Until here others find an empty file, whose owner lives, and pass over it.
            os.write(self._file, msgspec.json.encode(address))
        except OSError as error:
            raise ConfigError(f"cannot announce the EC producer in {folder}: {error}") from None

    def close(self) -> None:
        if self._file is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = None


def producers(folder: Path) -> list[Address]:
    """The producers that live, in no order; what dead ones left is removed."""
    found = []
    for path in folder.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError, msgspec.DecodeError):
            if locked(path):
                found.append(msgspec.json.decode(path.read_bytes(), type=tuple[str, int]))
    return found


@dataclass(frozen=True)
class ArenaOptions:
    """Sizes, times and peers of a connector whose entries lie in one region."""

    capacity: int  # bytes of the store, 0 if this engine makes no embeddings
    landing: int  # bytes that may be on their way here, 0 if it needs none of peers
    device: str  # where both lie
    lease_s: float  # seconds that an entry is kept which a consumer was told of
    load_timeout_s: float  # seconds that a load may take
    folder: Path  # where producers of this host are found
    peers: tuple[Address, ...] = ()  # side channels of other producers


class ArenaEC(ECConnector):
    """A producer or a consumer of embeddings, or both; owns the "ec" region of its node: the store,
    then, where peers' memory cannot be mapped, room for what is read of it."""

    def __init__(
        self,
        node: Node,
        compatibility: str,
        options: ArenaOptions,
        changed: Changed = no_listener,
    ) -> None:
        self.meter = Meter("ec", node.transport.name)
        self._node = node
        self._options = options
        self._store: ECStore | None = None
        self._listing: Listing | None = None
        capacity, landing = aligned(options.capacity), aligned(options.landing)
        rooms = 0 if node.transport.maps else 2 * landing
        memory = torch.empty(0, dtype=torch.uint8)
        if capacity + rooms:
            # Rooms are never committed: transports that do not map make no sparse memory.
            memory = node.transport.allocate(
                REGION, capacity + rooms, options.device, sparse=bool(capacity)
            )
        node.expect(REGION, compatibility)
        if capacity:
            node.share(REGION, compatibility)
            self._open_store(memory[:capacity], changed)
        # What others made lands behind the store, and stays behind that while it is in use.
        room, pool = None, BufferPool(torch.from_numpy(np.empty(landing, np.uint8)))
        if rooms:
            room = Landing(memory, capacity, RangeAllocator(landing))
            pool = BufferPool(memory[capacity + landing :], capacity + landing)
        self._reader = ECReader(
            node, room, pool, self._sources(), options.load_timeout_s, self.meter
        )

    def _open_store(self, memory: torch.Tensor, changed: Changed) -> None:
        node, options = self._node, self._options

        def commit(offset: int, size: int) -> None:
            node.transport.commit(REGION, offset, size)

        self._store = ECStore(node.server, memory, commit, options.lease_s, changed=changed)
        node.server.reserve(ECWant, REGION)
        self._listing = Listing(options.folder, node.instance_id, node.address)

    def _sources(self) -> Sources:
        own = None if self._store is None else (self._node.address, self._store)
        return Sources(self._producers, own)

    def _producers(self) -> list[Address]:
        return [*self._options.peers, *producers(self._options.folder)]

    @property
    def store(self) -> ECStore:
        if self._store is None:
            raise TransferError("this worker stores no embeddings: its ec_role is ec_consumer")
        return self._store

    def offer(self, mm_hash: str, entry: Entry) -> dict[str, Any] | None:
        return self._stored(mm_hash) if self.store.offer(mm_hash, entry) else None

    def wanted(self, mm_hash: str) -> bool:
        return self.store.wanted(mm_hash)

    def swap(self, mm_hash: str, entry: Entry, left: dict[str, Entry]) -> dict[str, Any] | None:
        return self._stored(mm_hash) if self.store.swap(mm_hash, entry, left) else None

    def _stored(self, mm_hash: str) -> dict[str, Any]:
        described = self.store.tensors(mm_hash)
        assert described is not None
        return self._params(described)

    def find(self, mm_hash: str, holder: str) -> dict[str, Any] | None:
        tensors = self.store.keep(mm_hash, holder) if self._store is not None else None
        self.meter.asked(hit=tensors is not None)
        return None if tensors is None else self._params(tensors)

    def _params(self, tensors: list[ECTensor]) -> dict[str, Any]:
        (main,) = [tensor for tensor in tensors if tensor.name == EC_TENSOR]
        size = sum(tensor.nbytes for tensor in tensors)
        return {**self.endpoint(), "size_bytes": size, "shape": list(main.shape)}

    def endpoint(self) -> dict[str, Any]:
        if self._store is None:
            return {}
        return {"peer_host": self._node.server.host, "peer_port": self._node.server.port}

    def fetch(self, mm_hash: str, params: dict[str, Any] | None) -> ECLoad:
        return self._reader.fetch(mm_hash, params)

    def release(self, mm_hash: str, params: dict[str, Any] | None, holder: str) -> None:
        self._reader.release(mm_hash, params, holder)

    def poll(self, pending: Container[str] = ()) -> None:
        self._node.poll()
        self._reader.poll()
        if self._store is not None:
            self._store.poll(pending)

    @property
    def active(self) -> bool:
        return self._reader.active or (self._store is not None and self._store.active)

    @property
    def awaited(self) -> int:
        return 0 if self._store is None else self._store.awaited

    def stats(self) -> TransferStats:
        refused = self._node.refused
        if self._store is None:
            return self.meter.snapshot(refused=refused)
        return self.meter.snapshot(
            leases_expired=self._store.grants.expired + self._store.lapsed,
            bytes_held=self._store.size,
            evictions=self._store.evictions,
            refused=refused,
        )

    def clear(self) -> None:
        if self._store is not None:
            self._store.clear()

    def close(self) -> None:
        if self._listing is not None:
            # First, so that no consumer still finds what is being closed.
            self._listing.close()
        try:
            self._reader.close()
        finally:
            self._node.leave(REGION)

    def check_integrity(self) -> list[str]:
        problems = self._store.check_integrity() if self._store is not None else []
        problems += self._reader.check_integrity()
        if not self.active and self._node.regions == {REGION}:  # else the KV connector asks
            self._node.transport.poll()  # what has ended meanwhile is not lost
            problems += self._node.transport.check_integrity()
        return problems
