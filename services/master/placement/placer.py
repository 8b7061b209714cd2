"""One request onto the workers of its model."""

from __future__ import annotations

import math

import numpy as np

from protocol.errors import Unavailable
from protocol.placement import ItemPlacement, Placement, ScheduleRequest
from services.master.config import MasterConfig
from services.master.fleet.cache_index import CacheIndex
from services.master.fleet.columns import Floats
from services.master.fleet.fleet import Fleet
from services.master.fleet.pool import Charge
from services.master.index.expected_prefixes import ExpectedPrefix
from services.master.index.prefix_runs import Run, fill
from services.master.placement.costs import Choice, explain
from services.master.placement.job import Job
from services.master.placement.layouts import Layouts
from services.master.placement.ledger import give_back
from services.master.placement.media import MediaPlacer
from services.master.placement.media_plan import MediaPlan
from services.master.placement.objectives import check_objective, haste_of
from services.master.placement.policies.base import Policy
from services.master.placement.reservation import Reservation


class Placer:
    """Pure and synchronous: what it knows is in the fleet, what time it is the caller says."""

    def __init__(self, config: MasterConfig, policy: Policy) -> None:
        self._config = config
        self.policy = policy
        self._media = MediaPlacer(config, policy)
        self._layouts = Layouts(config, policy, self._media)

    def place(
        self, fleet: Fleet, request: ScheduleRequest, now_ms: float
    ) -> tuple[Placement, Reservation]:
        """Choose, and count the load at once. Nothing is counted if an error is raised:
        `AllBusy` if the request may wait, `Unavailable` if no worker can take it."""
        job = self._job(fleet, request, now_ms)
        prefill, decode = self._layouts.choose(job)
        check_objective(request, prefill, decode, fleet)
        held = Reservation(
            fleet, now_ms + self._lifetime_ms(request), predicted=request.predicted,
            placed_at=now_ms, settle_ms=self._config.settle * 1e3, tenant=request.tenant,
        )  # fmt: skip
        try:
            return self._count(job, prefill, decode, held), held
        except BaseException:
            give_back(held, now_ms, done=False)
            raise

    def _count(
        self, job: Job, prefill: Choice, decode: Choice | None, held: Reservation
    ) -> Placement:
        plan = MediaPlan(job.fleet, job.request, prefill.at, prefill.hits, held, job.now_ms)
        items = self._media.place(plan, job.items)
        if plan.ready_ms:
            prefill.ttft_ms = max(prefill.ttft_ms, _after_media_ms(prefill, plan.ready_ms))
            # How long several pictures wait for one another is known only now.
            check_objective(job.request, prefill, decode, job.fleet)
        _check_deadline(job.request, prefill.ttft_ms)
        # Before the charge: `debug` shows the loads by which the workers were chosen.
        placement = self._placement(job, prefill, decode, items)
        self._charge(job, prefill, decode, held, plan)
        # Last, as nothing can be refused any more: sending times are not given back.
        plan.commit()
        return placement

    def _job(self, fleet: Fleet, request: ScheduleRequest, now_ms: float) -> Job:
        keys, index = request.block_keys, fleet.index(request.predicted)
        runs = index.blocks.match(keys)
        blocks = fill(runs, fleet.slots)
        index.expected.extend(blocks, runs, keys)
        new = min(request.max_tokens or self._config.expected_tokens, self._config.expected_tokens)
        if request.items:
            fleet.media_at = now_ms
        items = self._media.look_up(fleet, request, now_ms) if request.items else []
        held = blocks * request.block_size
        np.minimum(held, request.prompt_tokens - 1, out=held)
        job = Job(request, fleet, now_ms, new, items, blocks, held, frozenset(request.avoid))
        job.below = _below(index, request, runs, fleet.slots)
        return job

    def _lifetime_ms(self, request: ScheduleRequest) -> float:
        ttl = self._config.request_ttl
        return 1e3 * (ttl if request.deadline_s is None else min(ttl, request.deadline_s))

    def _charge(
        self, job: Job, prefill: Choice, decode: Choice | None, held: Reservation, plan: MediaPlan
    ) -> None:
        request, now_ms = job.request, job.now_ms
        costs, row, encode_ms = prefill.costs, prefill.row, plan.local_ms
        alone = decode is None
        output = job.new_tokens if self._config.track_output_blocks else 0
        reused = self._config.assume_kv_reuse
        last = request.prompt_tokens + (output if alone else 0)
        charge = Charge(
            costs.pool, row, self._shown_at(plan), float(costs.work_ms[row]) + encode_ms,
            request.prompt_tokens - prefill.hits,
            context=request.prompt_tokens if alone else 0,
            blocks=math.ceil((last - reused * prefill.hits) / request.block_size),
            encode_ms=encode_ms, awaits=len(held.encodes),
            haste=haste_of(request) if alone else 0.0,
        )  # fmt: skip
        costs.pool.charge(charge, now_ms)
        if decode is None:
            held.decode = charge
        else:
            held.prefill = charge
            rest = request.prompt_tokens + output - reused * decode.hits
            held.decode = Charge(
                decode.costs.pool, decode.row, self._asked_at(job, prefill, decode, held),
                context=request.prompt_tokens, blocks=math.ceil(rest / request.block_size),
                awaits=1, haste=haste_of(request),
            )  # fmt: skip
            decode.costs.pool.charge(held.decode, now_ms)
        held.expected = self._expect(job, prefill, decode)

    def _shown_at(self, plan: MediaPlan) -> float:
        """When the reports of the worker that prefills will show the request. Engines of other
        makers are asked once its media are there; the end of its own encodes will be told."""
        waits = plan.at.info.dialect == "openai"
        if waits and plan.held.encodes:
            return plan.held.expires_at
        return plan.now_ms + plan.held.settle_ms + waits * plan.ready_ms

    def _asked_at(self, job: Job, prefill: Choice, decode: Choice, held: Reservation) -> float:
        """When decode's own reports will show the request. Engines of other makers are asked once
        prefill has ended, which a report will tell."""
        if decode.at.info.dialect == "openai":
            return held.expires_at
        asked = 0.0 if prefill.at.info.kv_endpoint else prefill.ttft_ms
        return job.now_ms + held.settle_ms + asked

    def _expect(self, job: Job, prefill: Choice, decode: Choice | None) -> ExpectedPrefix | None:
        """The prompt's blocks will be there soon."""
        keys, at, predicted = job.request.block_keys, prefill.at, job.request.predicted
        if decode is not None:
            _note_blocks(decode, job)
        if job.items and at.guessed is not None and not predicted:
            at.guessed.media.use([item.need.mm_hash for item in job.items], job.now_ms)
        if _note_blocks(prefill, job):
            return None
        return job.fleet.expected.add(at.slot, int(job.blocks[at.slot]), keys)

    def _placement(
        self, job: Job, prefill: Choice, decode: Choice | None, items: list[ItemPlacement]
    ) -> Placement:
        first = prefill.at
        second = first if decode is None else decode.at
        placement = Placement(
            job.request.request_id, second.target, first.target if decode else None, items,
            prefill.hits, prefill.ttft_ms,
        )  # fmt: skip
        if job.request.debug:
            stages = {"prefill": prefill, "decode": decode} if decode else {"combined": prefill}
            placement.debug = {
                name: explain(choice.costs, choice.row) for name, choice in stages.items() if choice
            }
        return placement


def _below(
    index: CacheIndex, request: ScheduleRequest, runs: list[Run], slots: int
) -> tuple[Floats, Floats] | None:
    """`Job.below`; `runs`: of the blocks in workers' pools."""
    if not index.host and not index.disk:
        return None
    keys, most = request.block_keys, request.prompt_tokens - 1
    if index.host:
        runs = index.blocks.further(runs, (index.host,), keys)
    in_memory = on_disk = np.minimum(fill(runs, slots) * request.block_size, most)
    if index.disk:
        runs = index.blocks.further(runs, (index.host, index.disk), keys)
        on_disk = np.minimum(fill(runs, slots) * request.block_size, most)
    return in_memory, on_disk


def _note_blocks(choice: Choice, job: Job) -> bool:
    """The prompt is taken to be at a worker that does not tell; False if its events will tell."""
    request, at = job.request, choice.at
    caches = at.caches(request.predicted)
    if caches is None:
        return False
    # In tokens: the keys may stand for blocks of another size than the worker's.
    tokens = float(choice.costs.pool.total_blocks[choice.row]) * at.info.block_size
    caches.blocks.use(request.block_keys, job.now_ms, int(tokens / request.block_size))
    return True


def _after_media_ms(prefill: Choice, ready_ms: float) -> float:
    """When prefill ends if the last embedding is there after `ready_ms`: several items of a request
    wait for one another at the encoders, which is known only once they are placed. Engines of other
    makers are asked once all are there."""
    costs, row = prefill.costs, prefill.row
    if prefill.at.info.dialect == "openai":
        return ready_ms + float(costs.work_ms[row])
    return ready_ms + costs.tail_tokens * float(costs.pool.token_ms[row])


def _check_deadline(request: ScheduleRequest, ttft_ms: float) -> None:
    """`Unavailable` if the first token cannot be there in time."""
    if request.deadline_s is not None and ttft_ms > request.deadline_s * 1e3:
        raise Unavailable(
            f"the first token is {ttft_ms / 1e3:.1f} s away, the deadline "
            f"{request.deadline_s:.1f} s",
            code="deadline_unreachable",
            retry_after_s=min(30.0, max(1.0, ttft_ms / 1e3 - request.deadline_s)),
        )
