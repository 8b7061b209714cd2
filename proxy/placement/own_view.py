"""Where the stages of a request run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from protocol.errors import Unavailable
from protocol.refs import compatibility_of
from protocol.types import GenerateRequest
from proxy.admission import Admission
from proxy.fleet.fleet import Fleet
from proxy.fleet.worker import Instance
from proxy.tokens.request_state import TokensRequest

_UNKNOWN_ROOM = 256


@dataclass(frozen=True)
class Plan:
    """`prefill` None: the decode worker does both. `encoders`: by mm_hash, who is to make an item's
    embeddings or has them; items without one are placed by content. `held`: items that need no
    encoder, since the worker that prefills has their embeddings or the KV of their whole span."""

    decode: Instance
    prefill: Instance | None = None
    encoders: Mapping[str, Instance] = field(default_factory=dict)
    held: frozenset[str] = frozenset()


class WorkerUnknown(Unavailable):
    """A place was found, at a worker that has just come or gone: another one may do."""


class Planner(Protocol):
    """Plans each attempt of a request, and is told how it went."""

    def admitted(self, state: TokensRequest) -> AbstractAsyncContextManager[None]:
        """Around all attempts of a request; raises if it cannot be taken on."""
        ...

    async def place(self, state: TokensRequest, wanted: GenerateRequest) -> Plan:
        """Where `wanted`, the attempt that begins, is to run. Raises if it cannot be placed; only
        if it is must `over` be called."""
        ...

    def stage_over(self, wanted: GenerateRequest, mm_hash: str | None = None) -> None:
        """An item of the attempt is encoded, or without `mm_hash` its prompt is prefilled."""
        ...

    def over(self, wanted: GenerateRequest, failed: Sequence[Instance], *, aborted: bool) -> None:
        """The attempt has ended, `aborted` before its last token; `failed` are workers at fault."""
        ...


class OwnView:
    """By what this proxy sees alone: the worker with the fewest calls, encoders by content."""

    def __init__(self, fleet: Fleet, admission: Admission) -> None:
        self._fleet = fleet
        self._admission = admission

    def admitted(self, state: TokensRequest) -> AbstractAsyncContextManager[None]:
        return self._admission.admitted(state.request.priority, state.left_s)

    async def place(self, state: TokensRequest, wanted: GenerateRequest) -> Plan:
        return by_load(self._fleet, wanted, state.avoid)

    def stage_over(self, wanted: GenerateRequest, mm_hash: str | None = None) -> None:
        """Nothing is planned by it."""

    def over(self, wanted: GenerateRequest, failed: Sequence[Instance], *, aborted: bool) -> None:
        """Nothing is planned by it."""


def by_load(fleet: Fleet, wanted: GenerateRequest, avoid: Sequence[Instance]) -> Plan:
    """The least loaded workers, of which one can take the other's KV; if all of one stage are down,
    or none fits, those of the other do both."""
    if not fleet.usable("decode"):
        if fleet.usable("prefill"):
            return Plan(fleet.least_loaded("prefill", avoid))
        raise fleet.nobody("decode")
    decode = fleet.least_loaded("decode", avoid)
    if wanted.sampling.max_tokens <= 1:
        return Plan(decode)
    others = [one for one in fleet.prefill if not hands_over(one, decode)]
    usable = [one for one in fleet.usable("prefill", [*others, *avoid]) if one not in others]
    return Plan(decode, fleet.lightest(usable) if usable else None)


def hands_over(prefill: Instance, decode: Instance) -> bool:
    """Whether their KV is of one compatibility; whoever does not say fits all."""
    kinds = {compatibility_of(one.kv_endpoint) for one in (prefill, decode)} - {""}
    return len(kinds) < 2


def room_of(fleet: Fleet, per_worker: int) -> int:
    """How many requests may be under way at once: `per_worker` for each that decodes, twice what it
    runs at once if that is 0; 0 if there is nobody."""
    workers = fleet.usable("decode") or fleet.usable("prefill")
    return sum(per_worker or 2 * worker.max_running or _UNKNOWN_ROOM for worker in workers)
