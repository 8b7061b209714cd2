"""An EC connector that holds nothing: embeddings counted in rows, on their way for as long as
moving or making them would take.

In place of a side channel there are actions, which the engine's driver carries to an encoder.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, cast

from connectors.base import EC_TENSOR, Changed, ECConnector, ECLoad, Entry, Tensors, no_listener
from connectors.meter import Meter, TransferStats
from protocol.errors import TransferError
from protocol.types import MMItem
from services.engine.scheduling.seams import Clock, length_mismatch
from services.mock.actions import Action, AskEmbedding
from services.mock.batches import patches_of
from services.mock.settings import EngineSettings
from services.mock.timing import Noise, Timers, Timing


def rows(count: int) -> Tensors:
    """What stands for an embedding of so many rows; −1: of as many as are wanted."""
    return cast(Tensors, {EC_TENSOR: range(count) if count >= 0 else None})


@dataclass(frozen=True)
class RowForm:
    """`services.engine.scheduling.seams.EmbeddingForm` of a model that there is none of."""

    token_bytes: int

    def taken(self, mm_hash: str, tensors: Tensors, tokens: int) -> Tensors:
        found = tensors[EC_TENSOR]
        if found is not None and len(found) != tokens:
            raise length_mismatch(mm_hash, len(found), tokens)
        return tensors


@dataclass
class _Expected:
    """An item of requests here; `local` if its medium came with one of them."""

    item: MMItem
    local: bool
    holders: set[str] = field(default_factory=set)


class _Load(ECLoad):
    """An embedding on its way here."""

    def __init__(self) -> None:
        self.found: Tensors | None = None
        self.error: TransferError | None = None

    def poll(self) -> Tensors | None:
        if self.error is not None:
            raise self.error
        return self.found

    def cancel(self) -> None:
        """Its answer finds another load, or none."""


class CountedEC(ECConnector):
    """An encoder's store, least recently used first out, and a consumer's loads. An embedding that
    no encoder can be asked for, and whose medium did not come with the request, counts as there;
    a worker that does it all waits until it has encoded it."""

    def __init__(
        self,
        settings: EngineSettings,
        timing: Timing,
        noise: Noise,
        clock: Clock,
        timers: Timers,
        actions: list[Action],
        changed: Changed = no_listener,
    ) -> None:
        self.meter = Meter("ec", "counted")
        self._changed = changed
        self.encoded = 0
        self._settings = settings
        self._timing = timing
        self._noise = noise
        self._clock = clock
        self._timers = timers
        self._actions = actions
        self._rows: OrderedDict[str, int] = OrderedDict()
        self._size = 0
        self._expected: dict[str, _Expected] = {}
        self._loads: dict[str, _Load] = {}
        self._encoder_free = 0.0

    def offer(self, mm_hash: str, entry: Entry) -> dict[str, Any] | None:
        count = len(entry.tensors[EC_TENSOR])
        size = count * self._settings.row_bytes
        if size > self._settings.ec_cache_bytes:
            raise TransferError(f"media item {mm_hash[:16]} is larger than the embedding store")
        if mm_hash not in self._rows:
            self._size += size
            self._changed(mm_hash, count, size)
        self._rows[mm_hash] = count
        self._rows.move_to_end(mm_hash)
        while self._size > self._settings.ec_cache_bytes:
            name, gone = self._rows.popitem(last=False)
            self._size -= gone * self._settings.row_bytes
            self._changed(name, 0, 0)
        if (load := self._loads.get(mm_hash)) is not None:
            # In the next step, which the timer asks for: this one may have looked at loads already.
            self._timers.at(self._clock(), lambda: self._arrived(mm_hash, load, count))
        return self._handle(count)

    def _handle(self, count: int) -> dict[str, Any]:
        size = self._settings.row_bytes
        return {
            **self.endpoint(),
            "size_bytes": count * size,
            "shape": [count, size // 2],
            "triptych": {"instance_id": self._settings.instance_id},
        }

    def endpoint(self) -> dict[str, Any]:
        return {"peer_host": self._settings.host, "peer_port": self._settings.port}

    def rows_of(self, mm_hash: str) -> int | None:
        """Of an entry in the store, which becomes the last to leave; None if it is not there."""
        if mm_hash in self._rows:
            self._rows.move_to_end(mm_hash)
        return self._rows.get(mm_hash)

    def find(self, mm_hash: str, holder: str) -> dict[str, Any] | None:
        count = self.rows_of(mm_hash)
        self.meter.asked(hit=count is not None)
        return None if count is None else self._handle(count)

    def expect(self, request_id: str, items: list[MMItem], local: Collection[str]) -> None:
        """A request needs these; the media of `local` came with it."""
        for item in items:
            name = item.mm_hash
            found = self._expected.setdefault(name, _Expected(item, False))
            found.local = found.local or name in local
            found.holders.add(request_id)

    @property
    def expecting(self) -> bool:
        """Whether any request here still needs an embedding."""
        return bool(self._expected)

    def release(self, mm_hash: str, params: dict[str, Any] | None, holder: str) -> None:
        found = self._expected.get(mm_hash)
        if found is not None:
            found.holders.discard(holder)
            if not found.holders:
                del self._expected[mm_hash]

    def fetch(self, mm_hash: str, params: dict[str, Any] | None) -> ECLoad:
        load = self._loads[mm_hash] = _Load()
        count, expected = self.rows_of(mm_hash), self._expected.get(mm_hash)
        host, port = _address(params)
        if count is not None:
            self._arrived(mm_hash, load, count)
        elif host or self._settings.remote_embeddings:
            self._actions.append(AskEmbedding(mm_hash, host, port))
        elif expected is not None and expected.local:
            self._encode(mm_hash, load, expected.item)
        elif self._settings.role == "pdfusion":
            self._timers.at(
                self._clock() + self._settings.lease_s, lambda: self._late(mm_hash, load)
            )
        else:
            self._copy(mm_hash, load, -1 if expected is None else expected.item.length)
        return load

    def found(self, mm_hash: str, answer: int | str) -> None:
        """Answer to `AskEmbedding`: the rows of the embedding, or why there is none."""
        load, expected = self._loads.get(mm_hash), self._expected.get(mm_hash)
        if load is None:
            return
        if isinstance(answer, int):
            self._copy(mm_hash, load, answer)
        elif expected is not None and expected.local:
            self._encode(mm_hash, load, expected.item)
        else:
            self._fail(mm_hash, load, answer)

    def _encode(self, mm_hash: str, load: _Load, item: MMItem) -> None:
        """Encode here, one item after the other."""
        self.encoded += 1
        seconds = self._timing.encode_s(patches_of(item.grid, item.length), item.length)
        self._encoder_free = max(self._clock(), self._encoder_free) + self._noise.on(seconds)
        self._timers.at(self._encoder_free, lambda: self._arrived(mm_hash, load, item.length))

    def _copy(self, mm_hash: str, load: _Load, count: int) -> None:
        seconds = self._noise.on(self._timing.embedding_s(max(0, count)))
        self._timers.at(self._clock() + seconds, lambda: self._arrived(mm_hash, load, count))

    def _late(self, mm_hash: str, load: _Load) -> None:
        if load.found is None:
            self._fail(mm_hash, load, "it was not encoded in time")

    def _fail(self, mm_hash: str, load: _Load, cause: str) -> None:
        load.error = TransferError(f"media item {mm_hash[:16]}: {cause}")
        if self._loads.get(mm_hash) is load:
            del self._loads[mm_hash]

    def _arrived(self, mm_hash: str, load: _Load, count: int) -> None:
        load.found = rows(count)
        # Since this load was cancelled another one of the same name may have begun.
        if self._loads.get(mm_hash) is load:
            del self._loads[mm_hash]

    def stats(self) -> TransferStats:
        return self.meter.snapshot(bytes_held=self._size)

    def clear(self) -> None:
        for name in self._rows:
            self._changed(name, 0, 0)
        self._rows.clear()
        self._size = 0

    def close(self) -> None:
        """Nothing is held."""

    def check_integrity(self) -> list[str]:
        held = sum(self._rows.values()) * self._settings.row_bytes
        return [] if held == self._size else [f"{held} bytes held, books say {self._size}"]


def _address(params: dict[str, Any] | None) -> tuple[str, int]:
    """Where an `ec_transfer_params` entry says that the embedding is; ("", 0) if it does not."""
    entry: Any = params
    if not isinstance(entry, dict):
        return "", 0
    host, port = entry.get("peer_host"), entry.get("peer_port")
    if isinstance(host, str) and host and isinstance(port, int):
        return host, port
    return "", 0
