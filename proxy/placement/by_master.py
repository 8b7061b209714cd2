"""Plans that a master makes; by the proxy's own view while none answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from protocol.errors import DeadlineExceeded, ModelNotFound, RateLimited, TriptychError, Unavailable
from protocol.placement import SCHEDULE_PATH, Finished, Placement, ScheduleRequest, Target
from proxy.admission import Admission
from proxy.fleet.fleet import Fleet, WorkerUnknown
from proxy.fleet.fleet_watcher import FleetWatcher
from proxy.fleet.worker import Instance
from proxy.metrics import ProxyMetrics
from proxy.placement.batches import Batches
from proxy.placement.master_client import MasterAway, MasterClient, Reporter
from proxy.placement.own_view import OwnView, by_load_of
from proxy.placement.planner import AttemptEnd, ItemEnd, Need, Plan
from proxy.request_state import RequestState

logger = logging.getLogger(__name__)
_BLOCK_SIZE = 16  # tokens; vLLM's default, until a worker has said its own
# A master that has just started may not have heard of those there are.
_NO_WORKER = ("no_worker", "no_prefill", "no_decode")
# Higher is earlier at a master; clients say it as vLLM does, lower is earlier.
_MEDIAN_PRIORITY, _LOWEST, _HIGHEST = 50, 1, 100


class MasterPlanner:
    """`alone` plans, and admits, while no master answers."""

    def __init__(
        self,
        fleet: Fleet,
        client: MasterClient,
        watcher: FleetWatcher,
        reporter: Reporter,
        alone: OwnView,
        metrics: ProxyMetrics,
    ) -> None:
        self._fleet = fleet
        self._client = client
        self._batches = Batches(client, reporter)
        self._watcher = watcher
        self._reporter = reporter
        self._alone = alone
        self._metrics = metrics
        # Ids of attempts that a master may have placed: of others it need not hear.
        self._at_masters: set[str] = set()

    @property
    def asks(self) -> bool:
        return self._client.present

    @property
    def admission(self) -> Admission | None:
        return None if self._client.present else self._alone.admission

    async def place(self, state: RequestState, need: Need) -> Plan:
        """Raises what the master says if it has no room."""
        if self._client.present:
            self._check_readers(need.wanted_model)
            try:
                return await self._by_master(state, need)
            except (WorkerUnknown, DeadlineExceeded, asyncio.CancelledError):
                self.over(need.request_id, AttemptEnd(aborted=True))  # placed perhaps, in vain
                raise
            except TriptychError as error:
                if not isinstance(error, MasterAway):  # which may have placed it before it broke
                    self._at_masters.discard(need.request_id)
                if _is_refusal(error) or self._names_no_model(error):
                    raise
                logger.warning(
                    "the master failed: %s; the proxy places by its last view", error.message
                )
        self._metrics.placements.labels("proxy").inc()
        try:
            return by_load_of(self._fleet, need, state.avoid)
        except TriptychError:
            self.over(need.request_id, AttemptEnd(aborted=True))
            raise

    def _check_readers(self, model: str | None) -> None:
        """Raises if no worker of the model reads what this proxy renders, which a master does not
        know."""
        if not self._fleet.misfits:
            return
        computing = self._computing(model)
        if computing and all(one.misfit for one in computing):
            raise self._fleet.no_worker("decode", model)

    def _computing(self, model: str | None) -> list[Instance]:
        """Workers that prefill or decode, of several rendered models those of the one named."""
        return self._fleet.computing(self._fleet.models.meant(model))

    def _names_no_model(self, error: TriptychError) -> bool:
        """Whether the request is wrong. Of one model the workers may know further names; models
        that are rendered here are known, whether or not they have workers."""
        models = self._fleet.models
        return models.several and not models.rendered and isinstance(error, ModelNotFound)

    async def _by_master(self, state: RequestState, need: Need) -> Plan:
        asked = self._asked(state, need)
        self._at_masters.add(need.request_id)
        placement = None
        if not state.record.trace_headers:
            placement = await self._batches.place(asked, state.deadline)
        if placement is None:
            placement = await self._client.post(
                SCHEDULE_PATH, asked, Placement, state.deadline, state.record.trace_headers
            )
        if placement.debug is not None:
            state.record.reasons += (placement.debug,)
        plan = self._plan(state, placement, need.wanted_model)
        if plan.decode.misfit or (plan.prefill is not None and plan.prefill.misfit):
            # It was placed: the master would count it on.
            self.over(need.request_id, AttemptEnd(aborted=True))
            raise self._fleet.no_worker("decode", need.wanted_model)
        self._metrics.placements.labels("master").inc()
        return plan

    def _asked(self, state: RequestState, need: Need) -> ScheduleRequest:
        size = self._block_size(need.wanted_model)
        return ScheduleRequest(
            need.request_id,
            max(1, need.prompt_tokens),
            model=self._watcher.asked_for(need.model),
            block_keys=need.keys(size),
            block_size=size,
            items=list(need.items),
            max_tokens=need.max_tokens,
            priority=min(_HIGHEST, max(_LOWEST, _MEDIAN_PRIORITY - state.priority)),
            deadline_s=state.left_s,
            tenant=state.caller.tenant,
            session=state.caller.session,
            avoid=list({i.instance_id for i in self._avoided(state) if i.instance_id}),
            retry=state.failed,
            debug=state.record.explained,
            predicted=need.predicted,
            pooling=need.pooling,
            alone=need.alone,
        )

    def _avoided(self, state: RequestState) -> Iterable[Instance]:
        """Workers that have failed the request, or do not read what this proxy renders."""
        if not self._fleet.misfits:
            return state.avoid
        return (*state.avoid, *(one for one in self._fleet.all() if one.misfit))

    def _block_size(self, model: str | None) -> int:
        """Of the workers that serve `model`, which are all unless the proxy renders for several."""
        sizes = (one.block_size for one in self._computing(model))
        return next((size for size in sizes if size), _BLOCK_SIZE)

    def _plan(self, state: RequestState, placement: Placement, model: str | None = None) -> Plan:
        encoders, held, local = {}, set(), set()
        at = placement.prefill or placement.decode
        for item in placement.encoders:
            if item.state == "prefix" or item.target == at or _is_store(item.target):
                if not state.attempt:  # should it be gone by then, the next attempt encodes it
                    held.add(item.mm_hash)
            elif item.state == "local":
                local.add(item.mm_hash)
                if self._encodes(at):
                    encoders[item.mm_hash] = self._instance(at)
            elif item.target is not None:
                encoders[item.mm_hash] = self._instance(item.target)
        return Plan(
            self._instance(placement.decode),
            None if placement.prefill is None else self._instance(placement.prefill),
            encoders,
            frozenset(held),
            frozenset(local),
            model,
        )

    def _encodes(self, at: Target) -> bool:
        """Whether a worker that prefills answers calls to encode too."""
        return at.role == "pdfusion" or self._instance(at).changes_role

    def _instance(self, target: Target) -> Instance:
        """The worker of the fleet; one that has just come is not known there yet."""
        known = self._watcher.by_id.get(target.instance_id)
        if known is None:
            raise WorkerUnknown(f"{target.url} has just come or gone", retry_after_s=1.0)
        return known

    def prefilled(self, request_id: str, elapsed_s: float) -> None:
        if request_id in self._at_masters:
            self._reporter.add(Finished(request_id, "prefill", elapsed_s=elapsed_s))

    def encoded(self, request_id: str, end: ItemEnd) -> None:
        if request_id not in self._at_masters:
            return
        report = Finished(
            request_id,
            "encode",
            [end.mm_hash],
            failed=_names(end.failed),
            # The master knows of the encoder that it has named alone: nothing of it is to be said.
            aborted=not end.as_planned,
            elapsed_s=end.elapsed_s,
        )
        self._reporter.add(report)

    def over(self, request_id: str, end: AttemptEnd) -> None:
        if request_id not in self._at_masters:
            return
        self._at_masters.remove(request_id)
        report = Finished(
            request_id,
            "request",
            failed=_names(end.failed),
            aborted=end.aborted,
            elapsed_s=end.elapsed_s,
            first_s=end.first_s,
            output_tokens=end.output_tokens,
        )
        self._reporter.add(report)

    def suspect(self, instance: Instance) -> None:
        """The master asks the worker for its health at once, instead of waiting for its lease."""
        if instance.instance_id:
            self._reporter.suspect(instance.instance_id, instance.generation)


def _names(workers: Iterable[Instance]) -> list[str]:
    """Those by which the master knows them; it knows no others."""
    return [worker.instance_id for worker in workers if worker.instance_id]


def _is_store(target: Target | None) -> bool:
    """A worker that needs an embedding finds it there by itself."""
    return target is not None and target.role == "store"


def _is_refusal(error: TriptychError) -> bool:
    """Whether the master has looked, and the fleet is too busy."""
    if isinstance(error, Unavailable):
        return error.code not in _NO_WORKER
    return isinstance(error, RateLimited)
