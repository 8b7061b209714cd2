"""Plans by what this proxy sees alone: the worker with the fewest calls, encoders by content."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from protocol.types import Role
from proxy.admission import Admission
from proxy.fleet.fleet import Fleet, Unreadable
from proxy.fleet.worker import Instance
from proxy.placement.planner import AttemptEnd, ItemEnd, Need, Plan
from proxy.request_state import RequestState

_UNKNOWN_ROOM = 256  # requests, for a worker that does not say how many it runs
ONE_WORKER = 1
"""Tokens of an answer for which no second worker is looked for."""
_COMPUTING: tuple[Role, Role] = ("decode", "prefill")


class OwnView:
    """The planner of a proxy without a master."""

    asks = False

    def __init__(self, fleet: Fleet, admission: Admission) -> None:
        self._fleet = fleet
        self.admission = admission

    async def place(self, state: RequestState, need: Need) -> Plan:
        return by_load_of(self._fleet, need, state.avoid)

    def prefilled(self, request_id: str, elapsed_s: float) -> None:
        """Nothing is planned by it."""

    def encoded(self, request_id: str, end: ItemEnd) -> None:
        """Nothing is planned by it."""

    def over(self, request_id: str, end: AttemptEnd) -> None:
        """Nothing is planned by it."""

    def suspect(self, instance: Instance) -> None:
        """The fleet knows."""


def by_load_of(fleet: Fleet, need: Need, avoid: Sequence[Instance]) -> Plan:
    """`by_load` for an attempt that takes `need`. A worker that does it all encodes its own media
    where there are no encoders, or where it could not read what they make."""
    items, model = need.items, need.wanted_model
    most = ONE_WORKER if need.alone else need.max_tokens
    plan = by_load(fleet, most, avoid, model, pooling=need.pooling, media=bool(items))
    if items and plan.at.does_all and not (plan.reader and fleet.usable("encode", (), model)):
        return replace(plan, encoders=dict.fromkeys((item.mm_hash for item in items), plan.at))
    return plan


def by_load(
    fleet: Fleet,
    max_tokens: int,
    avoid: Sequence[Instance],
    model: str | None = None,
    *,
    pooling: bool = False,
    media: bool = False,
) -> Plan:
    """The least loaded workers, of which one can take the other's KV; if all of one stage are down,
    or have failed the request, or none fits, those of the other do both. `model`: as a request
    names it, where the fleet may have several. With `pooling` nothing is decoded: prefill workers
    come first. With `media` the worker that prefills can read some encoder's embeddings."""
    decoding, prefilling = (fleet.usable(role, avoid, model) for role in _COMPUTING)
    if not (decoding or prefilling):
        raise fleet.no_worker("decode", model)
    reads = reader_of(fleet.usable("encode", (), model) if media else ())
    if media:
        prefilling = [one for one in prefilling if reads(one)]
        # A worker that decodes need not read embeddings if another one prefills for it.
        decoding = [d for d in decoding if reads(d) or any(hands_over(p, d) for p in prefilling)]
        if not (decoding or prefilling):
            raise Unreadable
    fresh = [one for one in prefilling if one not in avoid]
    # A prefill worker that has not failed the request comes before decode workers that all have.
    if not decoding or (fresh and (pooling or all(one in avoid for one in decoding))):
        return Plan(fleet.lightest(fresh or prefilling), model=model)
    decode = fleet.lightest(decoding)
    alone = reads(decode)
    # To hand the KV over for a single token takes longer than to decode it in place.
    if max_tokens == ONE_WORKER and alone:
        return Plan(decode, model=model)
    partners = [one for one in fresh if hands_over(one, decode)]
    if not (partners or alone):
        partners = [one for one in prefilling if hands_over(one, decode)]
    return Plan(decode, fleet.lightest(partners) if partners else None, model=model)


def hands_over(prefill: Instance, decode: Instance) -> bool:
    """Whether their KV is of one compatibility; one that does not say fits all."""
    kinds = prefill.kv_compatibility, decode.kv_compatibility
    return "" in kinds or kinds[0] == kinds[1]


def reader_of(encoders: Iterable[Instance]) -> Callable[[Instance], bool]:
    """Whether a worker can read embeddings of any of these; without encoders no worker is refused
    for it."""
    kinds = {encoder.ec_compatibility for encoder in encoders}
    readable = not kinds or "" in kinds

    def reads(worker: Instance) -> bool:
        kind = worker.ec_compatibility
        return readable or not kind or kind in kinds

    return reads


class Room:
    """How many requests may be under way. Counted when the fleet changes, not for every request.

    `requests`: `per_worker` for each worker that decodes; with `per_worker` 0, twice what it runs
    at once. 0, for any number, if no worker is up (`none_up`). `at_once`: what these workers run at
    once. Of a model without any that decode, those that prefill count.
    """

    def __init__(self, fleet: Fleet, per_worker: int) -> None:
        self._fleet = fleet
        self._per_worker = per_worker
        self.requests = 0
        self.none_up = True
        self.at_once: float = math.inf
        self.count()

    def count(self) -> None:
        fleet = self._fleet
        workers = [
            worker
            for model in fleet.models.rendered or (None,)
            for worker in fleet.usable("decode", (), model) or fleet.usable("prefill", (), model)
        ]
        self.none_up = not workers
        # Twice what it runs: its next batch waits there, not here.
        of_each = (self._per_worker or 2 * one.max_running or _UNKNOWN_ROOM for one in workers)
        self.requests = sum(of_each)
        running = [one.max_running or self._per_worker or _UNKNOWN_ROOM for one in workers]
        self.at_once = sum(running) if running else math.inf
