"""KV on its way to a mock worker: asked for, copied once it has a place, confirmed."""

from __future__ import annotations

from collections.abc import Sequence

from connectors.kv.base import KVArrival, KVLoad
from protocol.errors import TransferError
from protocol.refs import KVRef
from services.engine.scheduling.seams import Clock
from services.mock.actions import Action, AskKV, ConfirmKV, KeepKV, ReleaseKV
from services.mock.kv_offers import OfferBody
from services.mock.timing import Noise, Timers, Timing


class _Load(KVLoad):
    """`blocks` are those that it may copy, None without a place; `number` tells its copies apart,
    of which only the last counts."""

    def __init__(self, loads: CountedLoads, ref: KVRef) -> None:
        self._loads = loads
        self.ref = ref
        self.offer: OfferBody | None = None
        self.blocks: int | None = None
        self.number = 0
        self.confirming = False
        self.held = False
        self.error: TransferError | None = None

    @property
    def fed(self) -> bool:
        return self.offer is not None

    def place(self, first: int, blocks: Sequence[int]) -> None:
        self.blocks = len(blocks)
        self._loads.copy(self)

    def unplace(self) -> None:
        if self.confirming:  # the producer has let go of its copy
            self.error = TransferError("its blocks were given to another request")
        self.blocks = None
        self.number += 1

    def poll(self) -> KVArrival | None:
        if self.error is not None:
            raise self.error
        if not self.held or self.offer is None:
            return None
        self._loads.done(self)
        digest = int(self.offer.digest, 16)
        return KVArrival(self.offer.num_tokens, digest, self.offer.outputs)

    def cancel(self) -> None:
        self._loads.give_up(self)

    @property
    def settled(self) -> bool:
        return True


class CountedLoads:
    """`actions` collects what the driver is to do. Leases are renewed every `keep_s`."""

    def __init__(
        self,
        timing: Timing,
        noise: Noise,
        clock: Clock,
        timers: Timers,
        actions: list[Action],
        keep_s: float,
    ) -> None:
        self._timing = timing
        self._noise = noise
        self._clock = clock
        self._timers = timers
        self._actions = actions
        self._keep_s = keep_s
        self._keeping = False
        self._loads: dict[str, _Load] = {}

    def __len__(self) -> int:
        return len(self._loads)

    def fetch(self, ref: KVRef) -> KVLoad:
        """Ask the producer. `TransferError` if this is being fetched already."""
        if ref.request_id in self._loads:
            raise TransferError(f"the KV of '{ref.request_id}' is being fetched already")
        load = self._loads[ref.request_id] = _Load(self, ref)
        self._actions.append(AskKV(ref))
        self._keep_later()
        return load

    def answered(self, ref: KVRef, answer: OfferBody | str) -> None:
        """The producer's answer to `AskKV`: the offer, or why there is none."""
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
        # By identity: a later load of the same request has a handle of its own.
        return load if load is not None and load.ref is ref else None

    def copy(self, load: _Load) -> None:
        """Begin to copy, if there is something and a place for it."""
        if load.offer is None or load.blocks is None:
            return
        seconds = self._noise.on(self._timing.kv_s(load.blocks))
        load.number += 1
        # A copy into a place that was taken away ends under a number that is not the load's.
        number = load.number
        self._timers.at(self._clock() + seconds, lambda: self._copied(load, number))

    def _copied(self, load: _Load, number: int) -> None:
        if self._load(load.ref) is load and load.number == number and load.offer is not None:
            load.confirming = True
            self._actions.append(ConfirmKV(load.ref, load.offer.generation))

    def confirmed(self, ref: KVRef, held: bool) -> None:
        """The producer's answer to `ConfirmKV`."""
        load = self._load(ref)
        if load is not None:
            load.held = held
            if not held:
                load.error = TransferError("the lease expired while the KV was copied")

    def done(self, load: _Load) -> None:
        """All of it is here."""
        del self._loads[load.ref.request_id]

    def give_up(self, load: _Load) -> None:
        """It is not wanted any more; idempotent."""
        if self._load(load.ref) is load:
            self.done(load)
            self._actions.append(ReleaseKV(load.ref))

    def _keep_later(self) -> None:
        if not self._keeping:
            self._keeping = True
            self._timers.at(self._clock() + self._keep_s, self._keep)

    def _keep(self) -> None:
        """Renew the leases of what waits for room or is on its way."""
        self._keeping = False
        # KV that still grows has no lease: the producer's answer, which is awaited, begins it.
        self._actions.extend(
            KeepKV(load.ref) for load in self._loads.values() if load.fed or not load.ref.growing
        )
        if self._loads:
            self._keep_later()
