"""What placed requests hold until they end, or until no client can be waiting for them any more."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from protocol.placement import Finished
from services.admission.tenant_shares import TenantShares
from services.master.fleet.cache_index import PendingEncode
from services.master.placement.reservation import Reservation
from services.master.placement.timings import decode_begins, decode_ends, learn

_JOIN_MS = 2_000.0  # until the event of an embedding that is made must have come
_SLACK = 1024  # lapses of ended requests, kept rather than searched for


class Ledger:
    """Requests by id. `over` is told of every stage that ends; `shares` of the tenants whose
    requests were placed here."""

    def __init__(
        self,
        over: Callable[[Finished], None] = lambda report: None,
        shares: TenantShares | None = None,
    ) -> None:
        self._over = over
        self._shares = shares or TenantShares(1.0)
        self._held: dict[str, Reservation] = {}
        self._expiry: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, request_id: str, held: Reservation, now_ms: float) -> None:
        """Count a request in; what it held before is given back."""
        self.release(request_id, now_ms, done=False)
        self._held[request_id] = held
        if held.tenant is not None:
            self._shares.enter(held.tenant)
        heapq.heappush(self._expiry, (held.expires_at, request_id))
        if len(self._expiry) > 2 * len(self._held) + _SLACK:
            self._expiry = [(h.expires_at, name) for name, h in self._held.items()]
            heapq.heapify(self._expiry)

    def finish(self, report: Finished, now_ms: float) -> list[str] | None:
        """A stage of a request has ended; returns the workers that have done their part in it, or
        None if the request is unknown, as after a restart."""
        held = self._held.get(report.request_id)
        if held is None:
            return None
        # Before the stage ends below: that gives back the charges which both of these read.
        workers = _workers(held, report) if report.done else []
        learn(held, report, now_ms)
        # The end of a whole request is told by `release`.
        if report.stage != "request":
            self._over(report)
        if report.stage == "encode":
            for mm_hash in report.mm_hashes or list(held.encodes):
                _end_encode(held, mm_hash, now_ms, ok=report.done)
        elif report.stage == "prefill":
            _prompt_computed(held, report, now_ms)
            _end_prefill(held, now_ms, done=report.done)
            if report.done:
                decode_begins(held, now_ms)
        else:
            _prompt_computed(held, report, now_ms)
            self.release(report.request_id, now_ms, done=report.done)
        return workers

    def release(self, request_id: str, now_ms: float, *, done: bool, lapsed: bool = False) -> None:
        """Give back all that a request holds; `lapsed`: its end was not reported."""
        held = self._held.pop(request_id, None)
        if held is not None:
            if held.tenant is not None:
                self._shares.leave(held.tenant)
            give_back(held, now_ms, done=done, lapsed=lapsed)
            self._over(Finished(request_id, aborted=not done))

    def clear(self, now_ms: float) -> None:
        """Give up all requests."""
        for name in list(self._held):
            self.release(name, now_ms, done=False, lapsed=True)
        self._expiry.clear()

    def expire(self, now_ms: float) -> int:
        """Give up requests that were never reported as finished; how many."""
        count = 0
        while self._expiry and self._expiry[0][0] <= now_ms:
            _, name = heapq.heappop(self._expiry)
            held = self._held.get(name)
            # A request that was placed anew stands in the heap twice, the first time too early.
            if held is not None and held.expires_at <= now_ms:
                self.release(name, now_ms, done=False, lapsed=True)
                count += 1
        return count


def _workers(held: Reservation, report: Finished) -> list[str]:
    """Of the stage, as far as it is not over."""
    charges = [held.prefill]
    if report.stage == "encode":
        charges = [held.encodes.get(name) for name in report.mm_hashes or held.encodes]
    if report.stage == "request":
        charges.append(held.decode)
    return [charge.pool.ids[charge.row] for charge in charges if charge and charge.live]


def _prompt_computed(held: Reservation, report: Finished, now_ms: float) -> None:
    """Where it decodes. Of an answer that is not streamed only the end tells."""
    charge = held.decode
    if report.done and charge is not None and held.computes is charge:
        charge.pool.prompt_computed(charge, now_ms, ended=report.stage == "request")


def give_back(held: Reservation, now_ms: float, *, done: bool, lapsed: bool = False) -> None:
    """End all that a request holds; unless `done` no request joins its encodes any more."""
    for mm_hash in list(held.encodes):
        _end_encode(held, mm_hash, now_ms, ok=done, lapsed=lapsed)
    _end_prefill(held, now_ms, done=done, lapsed=lapsed)
    if held.decode is not None:
        decode_ends(held, now_ms)
        held.decode.pool.release(held.decode, now_ms, done=done, lapsed=lapsed)
        held.decode = None


def _end_encode(
    held: Reservation, mm_hash: str, now_ms: float, *, ok: bool, lapsed: bool = False
) -> None:
    """The picture is at its encoder, which its own event will say, or never will be."""
    charge = held.encodes.pop(mm_hash, None)
    if charge is None:
        return
    if (computes := held.prefill or held.decode) is not None:
        computes.awaits -= 1
        if computes.awaits <= 0:  # engines that are asked only now show it soon
            computes.visible_at = min(computes.visible_at, now_ms + held.settle_ms)
    # Before the release, after which no charge is live.
    live, slot = charge.live, int(charge.pool.slots[charge.row])
    charge.pool.release(charge, now_ms, done=ok, lapsed=lapsed)
    if not live:
        return
    under_way = held.fleet.index(held.predicted).pending
    caches, pending = held.fleet.by_slot[slot].caches(held.predicted), under_way.get(mm_hash)
    if ok and caches is not None:
        caches.media.use((mm_hash,), now_ms)
    # Another request may have had the picture encoded once more: that one is still joined.
    if pending is None or pending.charge is not charge:
        return
    if ok and caches is None:
        under_way[mm_hash] = PendingEncode(slot, now_ms, now_ms + _JOIN_MS)
    else:
        del under_way[mm_hash]


def _end_prefill(held: Reservation, now_ms: float, *, done: bool, lapsed: bool = False) -> None:
    if held.prefill is not None:
        held.prefill.pool.release(held.prefill, now_ms, done=done, lapsed=lapsed)
        held.prefill = None
        if held.decode is not None:
            held.decode.awaits = 0
    if held.expected is not None:
        held.fleet.expected.remove(held.expected)
        held.expected = None
