"""One request onto the workers of its model."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from protocol.errors import Unavailable
from protocol.registry import ItemPlacement, Placement, ScheduleRequest
from services.master.config import MasterConfig
from services.master.expected import Expected
from services.master.explain import explain
from services.master.fleet import Fleet, Instance
from services.master.holders import fill
from services.master.ledger import Held, end_encodes
from services.master.media import ItemView, MediaPlacer, refusal, without
from services.master.policies.base import Policy
from services.master.pool import Charge, Floats, Pool
from services.master.view import COMBINED, DECODE, PREFILL, View, busy, decode_ms, least


@dataclass(slots=True)
class Job:
    """A request while it is placed. `blocks`: prefix length in blocks at every slot; `held`: prompt
    tokens whose KV is there, of which the last is always computed."""

    request: ScheduleRequest
    fleet: Fleet
    now_ms: float
    new_tokens: int
    items: list[ItemView]
    blocks: Floats
    held: Floats

    def hits(self, pool: Pool) -> Floats:
        """`held` by the rows of a pool. [rows]"""
        return self.held.take(pool.slots)


@dataclass(slots=True)
class Choice:
    """A row for the stage of a view."""

    view: View
    row: int

    @property
    def cost(self) -> float:
        return self.ttft_ms + float(self.view.decode_ms[self.row])

    @property
    def ttft_ms(self) -> float:
        view, row = self.view, self.row
        own = float(view.queue_ms[row] + view.work_ms[row])
        if not view.tail_tokens:
            return own
        tail = view.tail_tokens * float(view.pool.token_ms[row])
        return max(own, float(view.ready_ms[row]) + tail)

    @property
    def hits(self) -> int:
        return int(self.view.hits[self.row])

    def instance(self, fleet: Fleet) -> Instance:
        return fleet.by_slot[int(self.view.pool.slots[self.row])]


class Placer:
    """Pure and synchronous: what it knows is in the fleet, what time it is the caller says."""

    def __init__(self, config: MasterConfig, policy: Policy) -> None:
        self._config = config
        self.policy = policy
        self._media = MediaPlacer(config, policy)

    def place(
        self, fleet: Fleet, request: ScheduleRequest, now_ms: float
    ) -> tuple[Placement, Held]:
        """Choose, and count the load at once. Nothing is counted if an error is raised:
        `AllBusy` if the request may wait, `Unavailable` if nobody can take it."""
        job = self._job(fleet, request, now_ms)
        prefill, decode = self._choose(job)
        if request.deadline_s is not None and prefill.ttft_ms > request.deadline_s * 1e3:
            raise Unavailable(
                f"the first token is {prefill.ttft_ms / 1e3:.1f} s away, the deadline "
                f"{request.deadline_s:.1f} s",
                code="deadline_unreachable",
                retry_after_s=min(30.0, max(1.0, prefill.ttft_ms / 1e3 - request.deadline_s)),
            )
        held = Held(fleet, now_ms + self._lifetime_ms(request))
        at = prefill.instance(fleet)
        try:
            items = self._media.place(
                fleet, request, job.items, at, prefill.hits, held, now_ms
            )  # fmt: skip
        except Unavailable:
            end_encodes(held, now_ms, ok=False)
            raise
        self._charge(job, prefill, decode, held)
        return self._placement(job, prefill, decode, items), held

    def _job(self, fleet: Fleet, request: ScheduleRequest, now_ms: float) -> Job:
        keys = request.block_keys
        runs = fleet.blocks.match(keys)
        blocks = fill(runs, fleet.slots)
        fleet.expected.extend(blocks, runs, keys)
        new = min(request.max_tokens or self._config.expected_tokens, self._config.expected_tokens)
        items = self._media.look_up(fleet, request, now_ms) if request.items else []
        held = np.minimum(blocks * request.block_size, request.prompt_tokens - 1)
        return Job(request, fleet, now_ms, new, items, blocks, held)

    def _lifetime_ms(self, request: ScheduleRequest) -> float:
        ttl = self._config.request_ttl
        return 1e3 * (ttl if request.deadline_s is None else min(ttl, request.deadline_s))

    def _choose(self, job: Job) -> tuple[Choice, Choice | None]:
        """(prefill, decode), or (both in one, None): the cheaper if there are both."""
        pools = job.fleet.pools
        split = pools["prefill"].able and pools["decode"].able
        alone = pools["combined"] if pools["combined"].able or split else pools["decode"]
        options: list[tuple[Choice, Choice | None]] = []
        refused: Unavailable | None = None
        for separate in (True, False):
            if not (split if separate else alone.count):
                continue
            try:
                options.append(
                    self._pair(job) if separate else (self._prefill(job, alone, COMBINED), None)
                )
            except Unavailable as error:
                refused = error
        if not options:
            raise refused or _nobody(job.fleet)
        if len(options) == 1 or not self.policy.sees_media:
            return options[0]
        return min(options, key=_total)

    def _pair(self, job: Job) -> tuple[Choice, Choice]:
        pools = job.fleet.pools
        return self._prefill(job, pools["prefill"], PREFILL), self._decode(job, pools["decode"])

    def _prefill(self, job: Job, pool: Pool, stage: str) -> Choice:
        request, hits = job.request, job.hits(pool)
        queue = np.maximum(pool.busy_until - job.now_ms, 0.0)
        missing = request.prompt_tokens - hits
        work = pool.base_ms + missing * pool.token_ms + hits * pool.cached_ms
        decode = np.zeros(len(pool))
        if stage == COMBINED:
            decode = decode_ms(
                pool, request.prompt_tokens, job.new_tokens, request.block_size, None
            )
        ready, first = self._ready(job, pool, hits)
        tail = request.prompt_tokens - first if first >= 0 else 0
        view = View(
            stage, pool, pool.penalty, request.prompt_tokens, job.new_tokens, request.block_size,
            hits, queue, work, decode, ready, tail, request.session,
        )  # fmt: skip
        return self._pick(view, job)

    def _ready(self, job: Job, pool: Pool, hits: Floats) -> tuple[Floats, int]:
        if not job.items:
            return hits, -1
        return self._media.ready(job.fleet, job.items, pool, hits)

    def _decode(self, job: Job, pool: Pool) -> Choice:
        request, hits = job.request, job.hits(pool)
        none = np.zeros(len(pool))
        cost = decode_ms(pool, request.prompt_tokens, job.new_tokens, request.block_size, hits)
        view = View(
            DECODE, pool, pool.penalty, request.prompt_tokens, job.new_tokens, request.block_size,
            hits, none, none, cost, none, 0, request.session,
        )  # fmt: skip
        return self._pick(view, job)

    def _pick(self, view: View, job: Job) -> Choice:
        penalty = busy(view.pool, view.stage, view.queue_ms, self._config)
        if job.request.avoid:
            penalty = without(penalty, view.pool, job.request.avoid)
        if least(penalty) > 0.0:
            raise refusal(view.pool, view.stage, view.queue_ms)
        view.penalty = penalty
        return Choice(view, self.policy.pick(view))

    def _charge(self, job: Job, prefill: Choice, decode: Choice | None, held: Held) -> None:
        request, now_ms = job.request, job.now_ms
        settled = now_ms + self._config.settle * 1e3
        view, row = prefill.view, prefill.row
        alone = decode is None
        last = request.prompt_tokens + (job.new_tokens if alone else 0)
        charge = Charge(
            view.pool, row, settled, float(view.work_ms[row]), request.prompt_tokens - prefill.hits,
            context=request.prompt_tokens if alone else 0,
            blocks=math.ceil((last - prefill.hits) / request.block_size),
        )  # fmt: skip
        view.pool.charge(charge, now_ms)
        if decode is None:
            held.decode = charge
        else:
            held.prefill = charge
            rest = request.prompt_tokens + job.new_tokens - decode.hits
            held.decode = Charge(
                decode.view.pool, decode.row, settled + prefill.ttft_ms,
                context=request.prompt_tokens, blocks=math.ceil(rest / request.block_size),
            )  # fmt: skip
            decode.view.pool.charge(held.decode, now_ms)
        held.expected = self._expect(job, prefill, decode)

    def _expect(self, job: Job, prefill: Choice, decode: Choice | None) -> Expected | None:
        """The prompt's blocks will be there soon."""
        keys, fleet = job.request.block_keys, job.fleet
        for choice in (prefill, decode):
            at = choice.instance(fleet) if choice is not None else None
            if at is not None and at.blocks is not None:
                at.blocks.use(keys, job.now_ms)
            if job.items and choice is prefill and at is not None and at.media is not None:
                at.media.use([item.need.mm_hash for item in job.items], job.now_ms)
        at = prefill.instance(fleet)
        if at.blocks is not None:
            return None
        return fleet.expected.add(at.slot, int(job.blocks[at.slot]), keys)

    def _placement(
        self, job: Job, prefill: Choice, decode: Choice | None, items: list[ItemPlacement]
    ) -> Placement:
        first = prefill.instance(job.fleet)
        second = decode.instance(job.fleet) if decode is not None else first
        placement = Placement(
            job.request.request_id, second.target, first.target if decode else None, items,
            prefill.hits, prefill.ttft_ms,
        )  # fmt: skip
        if job.request.debug:
            stages = {"prefill": prefill, "decode": decode} if decode else {"combined": prefill}
            placement.debug = {
                name: explain(choice.view, choice.row) for name, choice in stages.items() if choice
            }
        return placement


def _total(option: tuple[Choice, Choice | None]) -> float:
    return sum(choice.cost for choice in option if choice is not None)


def _nobody(fleet: Fleet) -> Unavailable:
    wanted = "prefill" if fleet.pools["decode"].able else "decode"
    return Unavailable(f"no {wanted} worker is up", code=f"no_{wanted}", retry_after_s=1.0)
