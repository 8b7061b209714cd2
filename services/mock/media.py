"""Embeddings that requests of this worker need: here already, on their way, or made on the spot."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from math import prod
from typing import Any

from protocol.errors import TransferError
from protocol.types import MMItem
from services.mock.embeddings import EmbeddingStore
from services.mock.encoding import PATCHES_PER_TOKEN
from services.mock.loads import Action, AskEmbedding
from services.mock.request import Request
from services.mock.timing import Noise, Timing


@dataclass
class _Pending:
    item: MMItem
    owners: list[Request]
    local: bool = False


@dataclass
class Media:
    """`remote`: encoders can be asked for what no handle names. Where nobody can be asked and the
    media did not come with the request, an embedding counts as there at once."""

    store: EmbeddingStore
    timing: Timing
    noise: Noise
    at: Callable[[float, Callable[[float], None]], None]
    actions: list[Action]
    remote: bool = False
    failed: list[tuple[Request, TransferError]] = field(default_factory=list)
    queries: int = 0
    hits: int = 0
    encoded: int = 0
    _pending: dict[str, _Pending] = field(default_factory=dict)
    _encoder_free: float = 0.0

    def __len__(self) -> int:
        return len(self._pending)

    def want(self, request: Request, local: Collection[str], now: float) -> None:
        """Get the embeddings of a request's items; `local` are those whose media came with it."""
        for item in request.source.mm_items:
            self.queries += 1
            rows = self.store.find(item.mm_hash)
            pending = self._pending.get(item.mm_hash)
            if rows is not None:
                self.hits += 1
                self._deliver(item, [request], rows)
            elif pending is not None:
                self.hits += 1
                pending.owners.append(request)
                pending.local |= item.mm_hash in local
            else:
                pending = _Pending(item, [request], item.mm_hash in local)
                self._pending[item.mm_hash] = pending
                self._start(pending, request, now)

    def _start(self, pending: _Pending, request: Request, now: float) -> None:
        name = pending.item.mm_hash
        entry = (request.source.ec_transfer_params or {}).get(name)
        host, port = _address(entry)
        if host or self.remote:
            self.actions.append(AskEmbedding(name, host, port))
        elif pending.local:
            self._encode(pending, now)
        else:
            self._fetched(name, pending.item.length, now)

    def _encode(self, pending: _Pending, now: float) -> None:
        """Encode here, one item after the other."""
        item = pending.item
        patches = prod(item.grid) if item.grid else item.length * PATCHES_PER_TOKEN
        self.encoded += 1
        start = max(now, self._encoder_free)
        self._encoder_free = start + self.noise.on(self.timing.encode_s(patches, item.length))
        self.at(self._encoder_free, lambda _: self._arrived(item.mm_hash, item.length))

    def found(self, mm_hash: str, answer: int | str, now: float) -> None:
        """An encoder's answer: the rows of the embedding, or why there is none."""
        pending = self._pending.get(mm_hash)
        if pending is None:
            return
        if isinstance(answer, int):
            self._fetched(mm_hash, answer, now)
        elif pending.local:
            self._encode(pending, now)
        else:
            del self._pending[mm_hash]
            error = TransferError(f"media item {mm_hash[:16]}: {answer}")
            self.failed += [(owner, error) for owner in pending.owners]

    def _fetched(self, mm_hash: str, rows: int, now: float) -> None:
        seconds = self.noise.on(self.timing.embedding_s(rows))
        self.at(now + seconds, lambda _: self._arrived(mm_hash, rows))

    def _arrived(self, mm_hash: str, rows: int) -> None:
        pending = self._pending.pop(mm_hash, None)
        if pending is not None:
            self.store.put(mm_hash, rows)
            self._deliver(pending.item, pending.owners, rows)

    def _deliver(self, item: MMItem, owners: Collection[Request], rows: int) -> None:
        for owner in owners:
            wanted = [i for i in owner.source.mm_items if i.mm_hash == item.mm_hash]
            if all(i.length == rows for i in wanted):
                owner.ready.add(item.mm_hash)
                continue
            error = TransferError(
                f"media item {item.mm_hash[:16]}: the encoder made {rows} embeddings, its "
                f"placeholder span has {wanted[0].length} tokens",
                code="embedding_length_mismatch",
            )
            self.failed.append((owner, error))

    def forget(self, request: Request) -> None:
        """The request needs nothing any more."""
        for name in {item.mm_hash for item in request.source.mm_items}:
            pending = self._pending.get(name)
            if pending is not None and request in pending.owners:
                pending.owners.remove(request)
                if not pending.owners:
                    del self._pending[name]

    def check_integrity(self, alive: Collection[Request]) -> list[str]:
        """An embedding may only be awaited by requests that are alive."""
        return [
            f"embedding {name[:16]} is awaited by finished request {owner.request_id}"
            for name, pending in self._pending.items()
            for owner in pending.owners
            if owner not in alive
        ]


def _address(entry: Any) -> tuple[str, int]:
    """Where an `ec_transfer_params` entry says that the embedding is; ("", 0) if it does not."""
    if not isinstance(entry, dict):
        return "", 0
    host, port = entry.get("peer_host"), entry.get("peer_port")
    if isinstance(host, str) and host and isinstance(port, int):
        return host, port
    return "", 0
