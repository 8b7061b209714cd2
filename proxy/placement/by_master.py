"""Where the stages of a request run, as the master says; by our own view if there is none."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass

from protocol.errors import DeadlineExceeded, RateLimited, TriptychError, Unavailable
from protocol.keys import block_keys, root_key
from protocol.kv_events import short_key
from protocol.registry import (
    SCHEDULE_PATH,
    Finished,
    MediaNeed,
    Placement,
    ScheduleRequest,
    Target,
)
from protocol.types import GenerateRequest
from proxy.fleet.fleet import Fleet
from proxy.fleet.fleet_watcher import FleetWatcher
from proxy.fleet.worker import Instance
from proxy.metrics import ProxyMetrics
from proxy.placement.master_client import MasterClient
from proxy.placement.own_view import OwnView, Plan, WorkerUnknown, by_load
from proxy.placement.reporter import Reporter
from proxy.tokens.request_state import TokensRequest
from services.frontend.render import Frontend

logger = logging.getLogger(__name__)
_BLOCK_SIZE = 16
# A master that has just started may not have heard of those there are.
_NOBODY = ("no_worker", "no_prefill", "no_decode")
_MEDIAN_PRIORITY, _LOWEST, _HIGHEST = 50, 1, 100


@dataclass(frozen=True)
class ModelNames:
    """`served`: for clients and masters. `keyed` and `revision`: in content keys."""

    served: str = ""
    keyed: str = ""
    revision: str = ""

    @staticmethod
    def of(frontend: Frontend | None) -> ModelNames:
        if frontend is None:
            return ModelNames()
        info = frontend.info
        return ModelNames(frontend.config.names[0], info.name, info.revision)


class MasterPlanner:
    """`alone` plans, and admits, while no master answers."""

    def __init__(
        self,
        fleet: Fleet,
        link: MasterClient,
        following: FleetWatcher,
        reports: Reporter,
        alone: OwnView,
        metrics: ProxyMetrics,
        names: ModelNames,
    ) -> None:
        self._fleet = fleet
        self._link = link
        self._following = following
        self._reports = reports
        self._alone = alone
        self._metrics = metrics
        self._names = names

    def admitted(self, state: TokensRequest) -> AbstractAsyncContextManager[None]:
        """The master admits, when it is asked for a place."""
        return nullcontext() if self._link.present else self._alone.admitted(state)

    async def place(self, state: TokensRequest, wanted: GenerateRequest) -> Plan:
        """Raises what the master says if it has no room."""
        if self._link.present:
            try:
                return await self._by_master(state, wanted)
            except (WorkerUnknown, DeadlineExceeded, asyncio.CancelledError):
                self.over(wanted, (), aborted=True)  # placed perhaps, but it will not run there
                raise
            except TriptychError as error:
                if _is_refusal(error):
                    raise
                logger.warning("the master: %s; placing by the last view", error.message)
        self._metrics.placements.labels("proxy").inc()
        return by_load(self._fleet, wanted, state.avoid)

    async def _by_master(self, state: TokensRequest, wanted: GenerateRequest) -> Plan:
        asked = self._asked(state, wanted)
        placement = await self._link.post(SCHEDULE_PATH, asked, Placement, state.deadline)
        plan = self._plan(state, placement)
        self._metrics.placements.labels("master").inc()
        return plan

    def _asked(self, state: TokensRequest, wanted: GenerateRequest) -> ScheduleRequest:
        size = self._block_size()
        names, salt = self._names, wanted.cache_salt
        root = root_key(model=names.keyed, revision=names.revision, cache_salt=salt)
        keys = block_keys(wanted.token_ids, size, root, wanted.mm_items)
        return ScheduleRequest(
            wanted.request_id,
            len(wanted.token_ids),
            model=names.served,
            block_keys=[short_key(key) for key in keys],
            block_size=size,
            items=[
                MediaNeed(item.mm_hash, item.length, item.offset, modality=item.modality)
                for item in wanted.mm_items
            ],
            max_tokens=wanted.sampling.max_tokens,
            priority=min(_HIGHEST, max(_LOWEST, _MEDIAN_PRIORITY - wanted.priority)),
            deadline_s=state.left_s,
            tenant=state.caller.tenant,
            session=state.caller.session,
            avoid=list({i.instance_id for i in state.avoid if i.instance_id}),
        )

    def _block_size(self) -> int:
        sizes = (i.block_size for i in (*self._fleet.prefill, *self._fleet.decode))
        return next((size for size in sizes if size), _BLOCK_SIZE)

    def _plan(self, state: TokensRequest, placement: Placement) -> Plan:
        encoders, held = {}, set()
        at = placement.prefill or placement.decode
        for item in placement.encoders:
            if item.state == "prefix" or item.target == at or _is_store(item.target):
                if not state.attempt:  # should it be gone by then, the next attempt encodes it
                    held.add(item.mm_hash)
            elif item.target is not None:
                encoders[item.mm_hash] = self._instance(item.target)
        return Plan(
            self._instance(placement.decode),
            None if placement.prefill is None else self._instance(placement.prefill),
            encoders,
            frozenset(held),
        )

    def _instance(self, target: Target) -> Instance:
        """The worker of the fleet; one that has just come is not known there yet."""
        known = self._following.by_id.get(target.instance_id)
        if known is None:
            raise WorkerUnknown(f"{target.url} has just come or gone", retry_after_s=1.0)
        return known

    def stage_over(self, wanted: GenerateRequest, mm_hash: str | None = None) -> None:
        if mm_hash is None:
            self._reports.add(Finished(wanted.request_id, "prefill"))
        else:
            self._reports.add(Finished(wanted.request_id, "encode", [mm_hash]))

    def over(self, wanted: GenerateRequest, failed: Sequence[Instance], *, aborted: bool) -> None:
        names = [instance.instance_id for instance in failed if instance.instance_id]
        self._reports.add(Finished(wanted.request_id, "request", failed=names, aborted=aborted))


def _is_store(target: Target | None) -> bool:
    """Whoever needs an embedding finds it there by itself."""
    return target is not None and target.role == "store"


def _is_refusal(error: TriptychError) -> bool:
    """Whether the master has looked, and the fleet is too busy."""
    if isinstance(error, Unavailable):
        return error.code not in _NOBODY
    return isinstance(error, RateLimited)
