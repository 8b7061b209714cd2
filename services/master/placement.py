"""One request onto the workers of its model."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from protocol.errors import Unavailable
from protocol.registry import ItemPlacement, Placement, ScheduleRequest
from services.master.choice import Choice, chosen, total
from services.master.config import MasterConfig
from services.master.expected import Expected
from services.master.explain import explain
from services.master.fleet import Fleet
from services.master.holders import fill
from services.master.ledger import Held, give_back
from services.master.media import AllBusy, Errand, ItemView, MediaPlacer, refusal, without
from services.master.pairs import apart, mixed, partnered, takers
from services.master.policies.base import Policy
from services.master.pool import Charge, Floats, Pool
from services.master.view import (
    COMBINED,
    DECODE,
    PREFILL,
    View,
    busy,
    decode_ms,
    least,
    queue_ms,
)


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
        held = Held(fleet, now_ms + self._lifetime_ms(request))
        try:
            return self._count(job, prefill, decode, held), held
        except BaseException:
            give_back(held, now_ms, done=False)
            raise

    def _count(self, job: Job, prefill: Choice, decode: Choice | None, held: Held) -> Placement:
        errand = Errand(job.fleet, job.request, prefill.at, prefill.hits, held, job.now_ms)
        items = self._media.place(errand, job.items)
        _check_deadline(job.request, prefill.ttft_ms)
        placement = self._placement(job, prefill, decode, items)
        self._charge(job, prefill, decode, held)
        errand.commit()
        return placement

    def _job(self, fleet: Fleet, request: ScheduleRequest, now_ms: float) -> Job:
        keys = request.block_keys
        runs = fleet.blocks.match(keys)
        blocks = fill(runs, fleet.slots)
        fleet.expected.extend(blocks, runs, keys)
        new = min(request.max_tokens or self._config.expected_tokens, self._config.expected_tokens)
        items = self._media.look_up(fleet, request, now_ms) if request.items else []
        held = blocks * request.block_size
        np.minimum(held, request.prompt_tokens - 1, out=held)
        return Job(request, fleet, now_ms, new, items, blocks, held)

    def _lifetime_ms(self, request: ScheduleRequest) -> float:
        ttl = self._config.request_ttl
        return 1e3 * (ttl if request.deadline_s is None else min(ttl, request.deadline_s))

    def _choose(self, job: Job) -> tuple[Choice, Choice | None]:
        """(prefill, decode), or (both in one, None): the cheaper if there are both. A refusal that
        a wait may help is the one that counts."""
        options: list[tuple[Choice, Choice | None]] = []
        refused: Unavailable | None = None
        for alone in self._layouts(job.fleet):
            try:
                pair = (
                    self._pair(job)
                    if alone is None
                    else (self._prefill(job, alone, COMBINED), None)
                )
            except Unavailable as error:
                refused = refused if isinstance(refused, AllBusy) else error
                continue
            options.append(pair)
            if not self.policy.compares:
                break
        if not options:
            raise refused or _nobody(job.fleet)
        return options[0] if len(options) == 1 else min(options, key=total)

    def _layouts(self, fleet: Fleet) -> list[Pool | None]:
        """In the order to be tried: workers that do both, or None for a prefill and a decode
        worker. Decode workers do both where there is nobody else who fits."""
        pools = fleet.pools
        combined = pools["combined"]
        split = pools["prefill"].able and pools["decode"].able
        if not split or apart(pools["prefill"], pools["decode"]):
            alone = combined if combined.able else pools["decode"]
            return [alone] if alone.count else []
        if not combined.able:
            return [None]
        if self.policy.compares:
            return [None, combined]
        parted = pools["prefill"].able + pools["decode"].able
        return [None, combined] if self.policy.splits(parted, combined.able) else [combined, None]

    def _pair(self, job: Job) -> tuple[Choice, Choice]:
        prefill, decode = job.fleet.pools["prefill"], job.fleet.pools["decode"]
        if not mixed(prefill, decode):
            return self._prefill(job, prefill, PREFILL), self._decode(job, decode)
        first = self._prefill(job, prefill, PREFILL, partnered(prefill, decode))
        return first, self._decode(job, decode, takers(decode, prefill.kv_kinds[first.row]))

    def _prefill(self, job: Job, pool: Pool, stage: str, barred: Floats | None = None) -> Choice:
        request, hits = job.request, job.hits(pool)
        queue, work = queue_ms(pool, job.now_ms), request.prompt_tokens - hits
        work *= pool.token_ms
        work += pool.base_ms
        work += hits * pool.cached_ms
        decode = pool.none
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
        return self._pick(view, job, barred)

    def _ready(self, job: Job, pool: Pool, hits: Floats) -> tuple[Floats, int]:
        if not job.items:
            return hits, -1
        return self._media.ready(job.fleet, job.items, pool, hits)

    def _decode(self, job: Job, pool: Pool, barred: Floats | None = None) -> Choice:
        request, hits, none = job.request, job.hits(pool), pool.none
        cost = decode_ms(pool, request.prompt_tokens, job.new_tokens, request.block_size, hits)
        view = View(
            DECODE, pool, pool.penalty, request.prompt_tokens, job.new_tokens, request.block_size,
            hits, none, none, cost, none, 0, request.session,
        )  # fmt: skip
        return self._pick(view, job, barred)

    def _pick(self, view: View, job: Job, barred: Floats | None) -> Choice:
        penalty = busy(view.pool, view.stage, view.queue_ms, self._config)
        if barred is not None:
            penalty = penalty + barred
        if job.request.avoid:
            penalty = without(penalty, view.pool, job.request.avoid)
        if not view.pool.able or (penalty is not view.pool.penalty and least(penalty) > 0.0):
            raise refusal(view.pool, view.stage, view.queue_ms)
        view.penalty = penalty
        return chosen(view, self.policy.pick(view), job.fleet)

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
        keys, at = job.request.block_keys, prefill.at
        if decode is not None and decode.at.blocks is not None:
            decode.at.blocks.use(keys, job.now_ms)
        if job.items and at.media is not None:
            at.media.use([item.need.mm_hash for item in job.items], job.now_ms)
        if at.blocks is not None:
            at.blocks.use(keys, job.now_ms)
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
                name: explain(choice.view, choice.row) for name, choice in stages.items() if choice
            }
        return placement


def _check_deadline(request: ScheduleRequest, ttft_ms: float) -> None:
    """`Unavailable` if the first token cannot be there in time."""
    if request.deadline_s is not None and ttft_ms > request.deadline_s * 1e3:
        raise Unavailable(
            f"the first token is {ttft_ms / 1e3:.1f} s away, the deadline "
            f"{request.deadline_s:.1f} s",
            code="deadline_unreachable",
            retry_after_s=min(30.0, max(1.0, ttft_ms / 1e3 - request.deadline_s)),
        )


def _nobody(fleet: Fleet) -> Unavailable:
    wanted = "prefill" if fleet.pools["decode"].able else "decode"
    return Unavailable(f"no {wanted} worker is up", code=f"no_{wanted}", retry_after_s=1.0)
