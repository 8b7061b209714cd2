"""KV on its way here from the worker that prefilled: asked for, copied, confirmed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from protocol.errors import TransferError
from protocol.refs import KVRef
from services.mock.offers import OfferBody
from services.mock.request import Request, Status
from services.mock.scheduler import Scheduler
from services.mock.timing import Noise, Timing


@dataclass(frozen=True)
class AskKV:
    """Ask the producer for a request's KV; the answer is due in `KVLoads.answered`."""

    request_id: str
    ref: KVRef


@dataclass(frozen=True)
class ConfirmKV:
    """Tell the producer that all is copied; its answer is due in `KVLoads.confirmed`."""

    request_id: str
    ref: KVRef
    generation: int


@dataclass(frozen=True)
class KeepKV:
    """Renew the lease of KV that waits to be fetched."""

    ref: KVRef


@dataclass(frozen=True)
class ReleaseKV:
    """Tell the producer that nobody here wants this KV."""

    ref: KVRef


@dataclass(frozen=True)
class AskEmbedding:
    """Find an embedding at an encoder; the answer is due in `Engine.embedding_found`."""

    mm_hash: str
    host: str = ""
    port: int = 0


Action = AskKV | ConfirmKV | KeepKV | ReleaseKV | AskEmbedding


@dataclass
class _Load:
    request: Request
    ref: KVRef
    offer: OfferBody | None = None


@dataclass
class KVLoads:
    """`at` sets a timer, `actions` collects what the driver is to do. A load that fails makes its
    request compute everything itself."""

    scheduler: Scheduler
    timing: Timing
    noise: Noise
    compatibility: str
    at: Callable[[float, Callable[[float], None]], None]
    actions: list[Action]
    keep_s: float = 10.0
    arrived: list[tuple[Request, OfferBody]] = field(default_factory=list)
    failed: list[tuple[Request, TransferError]] = field(default_factory=list)
    fetched: int = 0
    failures: int = 0
    _loads: dict[str, _Load] = field(default_factory=dict)
    _keeping: bool = False

    def __len__(self) -> int:
        return len(self._loads)

    def keep(self, now: float) -> None:
        """Renew, from now on, the leases of KV that waits for room or is on its way."""
        if not self._keeping:
            self._keeping = True
            self.at(now + self.keep_s, self._keep)

    def _keep(self, now: float) -> None:
        waiting = [r.remote for r in self.scheduler.waiting if r.remote is not None]
        refs = [*waiting, *(load.ref for load in self._loads.values())]
        self.actions.extend(KeepKV(ref) for ref in refs if not ref.growing)
        self._keeping = False
        if refs:
            self.keep(now)

    def begin(self) -> None:
        """Start to fetch for waiting requests, oldest first, as far as there is room."""
        scheduler = self.scheduler
        while scheduler.waiting and scheduler.has_room():
            request = scheduler.waiting[0]
            ref = request.remote
            if ref is None or not scheduler.reserve(request):
                return
            del scheduler.waiting[0]
            request.remote = None
            request.cached = request.num_prompt
            request.status = Status.LOADING
            scheduler.loading.append(request)
            self._loads[request.request_id] = _Load(request, ref)
            problem = self._problem(ref, request)
            if problem is None:
                self.actions.append(AskKV(request.request_id, ref))
            else:
                self.actions.append(ReleaseKV(ref))
                self._fall_back(request, TransferError(problem))

    def _problem(self, ref: KVRef, request: Request) -> str | None:
        if ref.compatibility != self.compatibility:
            return f"KV of '{ref.compatibility}', this worker is '{self.compatibility}'"
        if ref.growing:
            return None
        if not 0 < ref.num_tokens <= request.num_prompt:
            return (
                f"kv_transfer_params offer {ref.num_tokens} tokens for a prompt of "
                f"{request.num_prompt}"
            )
        if len(ref.block_ids) != self.scheduler.blocks.blocks_for(ref.num_tokens):
            return f"kv_transfer_params: {len(ref.block_ids)} blocks for {ref.num_tokens} tokens"
        return None

    def answered(self, request_id: str, answer: OfferBody | str, now: float) -> None:
        """The producer's offer, or why there is none."""
        load = self._loads.get(request_id)
        if load is None:
            return
        request = load.request
        if isinstance(answer, str):
            self._fall_back(request, TransferError(answer))
        elif not 0 < answer.num_tokens <= request.num_prompt:
            self.actions.append(ReleaseKV(load.ref))
            self._fall_back(request, TransferError("the KV is not this prompt's"))
        else:
            load.offer = answer
            blocks = self.scheduler.blocks.blocks_for(answer.num_tokens) - request.stored
            seconds = self.noise.on(self.timing.kv_s(max(0, blocks)))
            self.at(now + seconds, lambda _: self._copied(load))

    def _copied(self, load: _Load) -> None:
        request_id = load.request.request_id
        if self._loads.get(request_id) is load and load.offer is not None:
            self.actions.append(ConfirmKV(request_id, load.ref, load.offer.generation))

    def confirmed(self, request_id: str, held: bool) -> None:
        """Whether the producer held the KV until it was copied."""
        load = self._loads.get(request_id)
        if load is None or load.offer is None:
            return
        request = load.request
        if not held:
            self._fall_back(request, TransferError("the lease lapsed while copying"))
            return
        del self._loads[request_id]
        self.fetched += 1
        self.scheduler.loading.remove(request)
        request.computed = min(load.offer.num_tokens, request.total - 1)
        request.unpriced = 0
        request.digest = int(load.offer.digest, 16)
        self.scheduler.start(request)
        self.arrived.append((request, load.offer))

    def _fall_back(self, request: Request, error: TransferError) -> None:
        """The request computes its KV itself, from scratch."""
        self.failures += 1
        del self._loads[request.request_id]
        self.scheduler.loading.remove(request)
        self.scheduler.blocks.release(request.holding)
        request.reset()
        request.cached = None
        self.scheduler.add(request)
        self.failed.append((request, error))

    def abort(self, request: Request) -> None:
        """Give up what is fetched, or waits to be fetched, for a request."""
        load = self._loads.pop(request.request_id, None)
        ref = load.ref if load is not None else request.remote
        if ref is not None:
            self.actions.append(ReleaseKV(ref))
