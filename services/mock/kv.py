"""A KV connector that moves nothing: offers under leases, loads that take as long as copying would.

In place of a side channel there are actions, which the engine's driver carries to the peer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from connectors.kv.base import KVArrival, KVConnector, KVLoad
from connectors.meter import Meter
from protocol.errors import IncompatiblePeer, TransferError
from protocol.refs import KVRef
from services.engine.scheduling.seams import Clock
from services.mock.actions import Action, AskKV, ConfirmKV, KeepKV, ReleaseKV
from services.mock.settings import EngineSettings
from services.mock.timers import Timers
from services.mock.timing import Noise, Timing

if TYPE_CHECKING:
    import torch


class OfferBody(msgspec.Struct, frozen=True):
    """An offer as a consumer gets it. `digest` stands for what the blocks contain: who fetches the
    KV of another prompt goes on with that prompt's tokens, as with real KV."""

    request_id: str
    generation: int
    num_tokens: int
    digest: str
    outputs: dict[int, list[int]]


@dataclass
class _Offer:
    body: OfferBody
    expires: float


class _Load(KVLoad):
    """KV on its way here: asked for, copied once it has a place, confirmed."""

    def __init__(self, connector: CountedKV, ref: KVRef) -> None:
        self._connector = connector
        self.ref = ref
        self.offer: OfferBody | None = None
        self.blocks: int | None = None
        self.copying = 0
        self.held = False
        self.error: TransferError | None = None

    @property
    def fed(self) -> bool:
        return self.offer is not None

    def place(self, first: int, blocks: Sequence[int]) -> None:
        self.blocks = len(blocks)
        self._connector.copy(self)

    def unplace(self) -> None:
        self.blocks = None
        self.copying += 1

    def poll(self) -> KVArrival | None:
        if self.error is not None:
            raise self.error
        if not self.held or self.offer is None:
            return None
        self._connector.done(self)
        digest = int(self.offer.digest, 16)
        return KVArrival(self.offer.num_tokens, digest, self.offer.outputs)

    def cancel(self) -> None:
        self._connector.give_up(self)

    @property
    def settled(self) -> bool:
        return True


class CountedKV(KVConnector):
    """Both ends. A handle's `rope_delta`, which goes from the producer's model to the consumer's,
    has the digest of what was computed. `settled` collects requests whose KV was being computed and
    is no more, offered or not, until the caller clears it."""

    def __init__(
        self,
        settings: EngineSettings,
        timing: Timing,
        noise: Noise,
        clock: Clock,
        timers: Timers,
        actions: list[Action],
    ) -> None:
        self.meter = Meter("kv", "counted")
        self.shares = settings.role != "pdfusion"
        self.settled: list[str] = []
        self.expired = 0
        self._settings = settings
        self._timing = timing
        self._noise = noise
        self._clock = clock
        self._timers = timers
        self._actions = actions
        self._growing: set[str] = set()
        self._offers: OrderedDict[str, _Offer] = OrderedDict()
        self._ended: list[str] = []
        self._generation = 0
        self._loads: dict[str, _Load] = {}
        self._keeping = False

    def endpoint(self) -> dict[str, Any]:
        return kv_ref(self._settings).to_params()

    def allocate(self, num_blocks: int, elements: int, dtype: torch.dtype) -> torch.Tensor:
        raise AssertionError("blocks are counted, not held")

    def open(self, request_id: str) -> None:
        self._growing.add(request_id)

    def extend(self, request_id: str, blocks: Sequence[int]) -> None:
        """Nothing: a consumer copies once all is computed."""

    def restart(self, request_id: str) -> None:
        """Nothing: nothing of it has been copied."""

    def end(
        self, request_id: str, num_tokens: int, rope_delta: int, outputs: dict[int, list[int]]
    ) -> KVRef:
        self._generation += 1
        digest = f"{rope_delta:016x}"
        body = OfferBody(request_id, self._generation, num_tokens, digest, outputs)
        self._offers[request_id] = _Offer(body, self._clock() + self._settings.lease_s)
        self._settle(request_id)
        return kv_ref(self._settings, body)

    def _settle(self, request_id: str) -> None:
        if request_id in self._growing:
            self._growing.discard(request_id)
            self.settled.append(request_id)

    def withdraw(self, request_id: str, reason: str) -> None:
        self._settle(request_id)
        self._offers.pop(request_id, None)

    def find(self, request_id: str) -> OfferBody | None:
        """A peer asks: the offer, its lease renewed; None if nothing is held under this name."""
        offer, now = self._offers.get(request_id), self._clock()
        if offer is None or offer.expires <= now:
            return None
        offer.expires = now + self._settings.lease_s
        self._offers.move_to_end(request_id)
        return offer.body

    def confirm(self, request_id: str, generation: int) -> bool:
        """A peer has copied: was the offer good until here? It ends here either way."""
        offer = self._offers.get(request_id)
        if offer is None or offer.body.generation != generation:
            return False
        self.release(request_id)
        return offer.expires > self._clock()

    def release(self, request_id: str) -> None:
        """A peer does not want it; idempotent."""
        if self._offers.pop(request_id, None) is not None:
            self._ended.append(request_id)

    def poll(self) -> list[str]:
        now = self._clock()
        while self._offers and (oldest := next(iter(self._offers.items())))[1].expires <= now:
            self.expired += 1
            self.release(oldest[0])
        ended, self._ended = self._ended, []
        return ended

    @property
    def next_time(self) -> float | None:
        """When the next lease lapses; now, if one has ended whose blocks are not free."""
        if self._ended:
            return self._clock()
        return next((offer.expires for offer in self._offers.values()), None)

    def names(self) -> list[str]:
        """Requests whose KV is held here."""
        return list(self._offers)

    def check(self, ref: KVRef) -> None:
        if ref.compatibility != self._settings.compatibility:
            raise IncompatiblePeer(
                f"KV of '{ref.compatibility}', this worker is '{self._settings.compatibility}'"
            )

    def fetch(self, ref: KVRef, num_blocks: int) -> KVLoad:
        if ref.request_id in self._loads:
            raise TransferError(f"the KV of '{ref.request_id}' is being fetched already")
        load = self._loads[ref.request_id] = _Load(self, ref)
        self._actions.append(AskKV(ref))
        self._keep_later()
        return load

    def answered(self, ref: KVRef, answer: OfferBody | str) -> None:
        """Answer to `AskKV`: the offer, or why there is none."""
        load = self._load(ref)
        if load is None:
            return
        if isinstance(answer, str):
            load.error = TransferError(answer)
        else:
            load.offer = answer
            self.copy(load)

    def _load(self, ref: KVRef) -> _Load | None:
        """The load that a message is about; None if it has ended."""
        load = self._loads.get(ref.request_id)
        return load if load is not None and load.ref is ref else None

    def copy(self, load: _Load) -> None:
        """Begin to copy, if there is something and a place for it."""
        if load.offer is None or load.blocks is None:
            return
        seconds = self._noise.on(self._timing.kv_s(load.blocks))
        load.copying += 1
        number = load.copying
        self._timers.at(self._clock() + seconds, lambda: self._copied(load, number))

    def _copied(self, load: _Load, number: int) -> None:
        if self._load(load.ref) is load and load.copying == number and load.offer is not None:
            self._actions.append(ConfirmKV(load.ref, load.offer.generation))

    def confirmed(self, ref: KVRef, held: bool) -> None:
        """Answer to `ConfirmKV`."""
        load = self._load(ref)
        if load is not None:
            load.held = held
            load.error = None if held else TransferError("the lease lapsed while copying")

    def done(self, load: _Load) -> None:
        """All of it is here."""
        del self._loads[load.ref.request_id]

    def give_up(self, load: _Load) -> None:
        """It is not wanted any more."""
        if self._load(load.ref) is load:
            self.done(load)
            self._actions.append(ReleaseKV(load.ref))

    def _keep_later(self) -> None:
        if not self._keeping:
            self._keeping = True
            self._timers.at(self._clock() + self._settings.lease_s / 3, self._keep)

    def _keep(self) -> None:
        """Renew the leases of what waits for room or is on its way."""
        self._keeping = False
        for load in self._loads.values():
            if not load.ref.growing:
                self._actions.append(KeepKV(load.ref))
        if self._loads:
            self._keep_later()

    def __len__(self) -> int:
        """Loads under way."""
        return len(self._loads)

    def close(self) -> None:
        """Nothing is held."""

    def check_integrity(self) -> list[str]:
        return []


def kv_ref(settings: EngineSettings, offer: OfferBody | None = None) -> KVRef:
    """Where a request's KV is; without an offer, where to ask for what is still computed."""
    tokens = offer.num_tokens if offer is not None else 0
    return KVRef(
        request_id=offer.request_id if offer is not None else "",
        instance_id=settings.instance_id,
        block_ids=tuple(range(-(-tokens // settings.block_size))),
        num_tokens=tokens,
        host=settings.host,
        port=settings.port,
        compatibility=settings.compatibility,
        generation=offer.generation if offer is not None else 0,
        lease_s=settings.lease_s,
    )
