"""Which workers a request could go to, and what that would cost: prefill and decode apart, both on
one worker, or the little that a decode worker has not of a prompt there."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from protocol.errors import Unavailable
from protocol.placement import ScheduleRequest
from services.master.config import MasterConfig
from services.master.fleet.columns import Floats
from services.master.fleet.fleet import Fleet
from services.master.fleet.pool import Pool
from services.master.placement import ec_compatibility
from services.master.placement.choice import Choice, Option, chosen
from services.master.placement.costs import (
    COMBINED,
    DECODE,
    PREFILL,
    StageCosts,
    busy,
    decode_ms,
    least,
    queue_ms,
)
from services.master.placement.kv_compatibility import apart, mixed, partnered, takers
from services.master.placement.media import MediaPlacer
from services.master.placement.media_plan import ItemSources
from services.master.placement.objectives import too_slow
from services.master.placement.policies.base import Policy
from services.master.placement.refusals import AllBusy, able, avoided, refusal, without_adapter


@dataclass(slots=True)
class Job:
    """A request while it is placed.

    `request`: what is asked for.
    `fleet`: the workers of its model.
    `now_ms`: of the caller's monotonic clock.
    `new_tokens`: expected output.
    `items`: where its pictures can come from.
    `blocks`: length in blocks of the prefix at every slot. [slots]
    `held`: prompt tokens whose KV is there; the last one is always computed. [slots]
    `avoid`: ids of instances that get no part of it.
    `below`: prompt tokens whose KV is there or in host memory, and those that are there, in host
    memory or on disk; None if no worker has tiers. [slots] each
    """

    request: ScheduleRequest
    fleet: Fleet
    now_ms: float
    new_tokens: int
    items: list[ItemSources]
    blocks: Floats
    held: Floats
    avoid: frozenset[str]
    below: tuple[Floats, Floats] | None = None

    @property
    def waits_for_media(self) -> bool:
        """Engines of other makers are asked to prefill once all items are encoded."""
        return bool(self.items) and self.request.predicted

    @property
    def media_end(self) -> int:
        """Prompt tokens up to the last picture's last."""
        return max((item.offset + item.tokens for item in self.request.items), default=0)

    def hits(self, pool: Pool) -> Floats:
        """`held` by the rows of a pool. [rows]"""
        return self.held.take(pool.slots)

    def saved_below(self, pool: Pool) -> Floats:
        """ms of prefill that KV in lower tiers saves: none where a worker has not measured its
        tier yet, or would compute it faster. [rows]"""
        saved = np.zeros(len(pool))
        if self.below is None:
            return saved
        before = self.hits(pool)
        for reach, token_ms in zip(self.below, (pool.host_ms, pool.disk_ms), strict=True):
            there = np.maximum(reach.take(pool.slots), before)
            gain = np.where(token_ms > 0.0, pool.token_ms - token_ms, 0.0)
            saved += (there - before) * np.maximum(gain, 0.0)
            before = there
        return saved


class Layouts:
    """Prices a request on all workers, and lets the policy choose."""

    def __init__(self, config: MasterConfig, policy: Policy, media: MediaPlacer) -> None:
        self._config = config
        self._policy = policy
        self._media = media

    def choose(self, job: Job) -> Option:
        """(prefill, decode), or (both in one, None): the cheaper if there are both. A worker
        that has failed the request gets it again only where no other could ever take it."""
        try:
            return self._choose(job)
        except AllBusy:
            raise
        except Unavailable:
            if not job.avoid:
                raise
        job.avoid = frozenset()
        return self._choose(job)

    def _choose(self, job: Job) -> Option:
        """A refusal that a wait may help is the one that counts."""
        options: list[Option] = []
        refused: Unavailable | None = None
        for alone in self._layouts(job):
            try:
                options += self._options(job, alone)
            except Unavailable as error:
                refused = refused if isinstance(refused, AllBusy) else error
                continue
            if not self._policy.compares:
                break
        if not options:
            raise refused or _nobody(job, enforced=self._config.enforce_disagg)
        return options[0] if len(options) == 1 else min(options, key=self._cost)

    def _cost(self, option: Option) -> float:
        """By the policy, on one worker or on two."""
        return sum(self._policy.price(choice) for choice in option if choice is not None)

    def _options(self, job: Job, alone: Pool | None) -> list[Option]:
        if alone is not None:
            return [(self._prefill(job, alone, COMBINED), None)]
        prefill, decode = self._pair(job)
        if self._config.enforce_disagg:
            return [(prefill, decode)]
        guessed = job.request.predicted  # were it wrong, a whole prompt would hold up decodes
        rest = None
        if self._policy.compares and not guessed:
            rest = self._rest(job, prefill, decode.costs)
        elif not guessed and self._policy.computes_there(decode) and decode.hits >= job.media_end:
            whole = self._whole(job, decode.costs, decode.costs.pool.token_ms)
            return [(chosen(whole, decode.row, job.fleet), None)]
        if rest is None:
            return [(prefill, decode)]
        missing = job.request.prompt_tokens - rest.costs.hits[rest.row]
        if rest.row == decode.row and missing <= job.request.block_size:
            return [(rest, None)]  # little more than a step: no rate tells that apart from noise
        return [(prefill, decode), (rest, None)]

    def _rest(self, job: Job, prefill: Choice, split: StageCosts) -> Choice | None:
        """A decode worker with a free place that computes what it has not of a prompt, where that
        is little: no faster than prefill does, as it may never have measured it."""
        pool, prompt, hits = split.pool, job.request.prompt_tokens, split.hits
        most = float(hits[hits.argmax()])
        known = max(prompt - self._config.decode_prefill_tokens, prompt / 2)
        if most < known:
            return None
        known = max(known, job.media_end)
        if most < known:
            return None
        token_ms = float(prefill.costs.pool.token_ms[prefill.row])
        costs = self._whole(job, split, np.maximum(pool.token_ms, token_ms))
        barred = np.where((hits < known) | (pool.room <= 0), math.inf, 0.0)
        try:
            return self._pick(costs, job, barred)
        except Unavailable:
            return None

    def _whole(self, job: Job, split: StageCosts, token_ms: Floats) -> StageCosts:
        """The decode workers of `split`, each as if it computed what it has not of the prompt."""
        pool, hits = split.pool, split.hits
        missing = job.request.prompt_tokens - hits
        work = missing * token_ms
        work += pool.base_ms
        work += hits * pool.cached_ms
        decode = split.decode_ms - missing * pool.kv_ms  # as nothing is copied
        return StageCosts(
            COMBINED, pool, pool.penalty, job.request.prompt_tokens, job.new_tokens,
            job.request.block_size, hits, queue_ms(pool, job.now_ms), work, decode, pool.none, 0,
            job.request.session,
        )  # fmt: skip

    def _layouts(self, job: Job) -> list[Pool | None]:
        """In the order to be tried: workers that do both, or None for a prefill and a decode
        worker. Decode workers do both where no other worker fits."""
        pools = job.fleet.pools
        prefill, decode, combined = pools["prefill"], pools["decode"], pools["combined"]
        if job.request.pooling:
            found = (pool for pool in (prefill, combined, decode) if able(pool, job.avoid))
            return [*itertools.islice(found, 1)]
        parts = able(prefill, job.avoid), able(decode, job.avoid)
        if self._config.enforce_disagg:
            return [None] if all(parts) and not apart(prefill, decode) else []
        both = able(combined, job.avoid)
        blind = self._blind(job, prefill)
        unread = blind is not None and least(prefill.penalty + blind) > 0.0
        if not all(parts) or apart(prefill, decode) or unread:
            alone = combined if both else decode
            return [alone] if alone.count else []
        if not both:
            return [None]
        if self._policy.compares:
            return [None, combined]
        return [None, combined] if self._policy.splits(sum(parts), both) else [combined, None]

    def _pair(self, job: Job) -> tuple[Choice, Choice]:
        prefill, decode = job.fleet.pools["prefill"], job.fleet.pools["decode"]
        if not mixed(prefill, decode):
            return self._prefill(job, prefill, PREFILL), self._decode(job, decode)
        barred = avoided(decode, job.avoid) if job.avoid else None
        first = self._prefill(job, prefill, PREFILL, partnered(prefill, decode, barred))
        return first, self._decode(job, decode, takers(decode, prefill.kv_kinds[first.row]))

    def _prefill(self, job: Job, pool: Pool, stage: str, barred: Floats | None = None) -> Choice:
        request, hits = job.request, job.hits(pool)
        queue, work = queue_ms(pool, job.now_ms), request.prompt_tokens - hits
        work *= pool.token_ms
        work += pool.base_ms
        work += hits * pool.cached_ms
        if job.below is not None:
            work -= job.saved_below(pool)
        decode = pool.none
        if stage == COMBINED:
            decode = decode_ms(
                pool, request.prompt_tokens, job.new_tokens, request.block_size, None
            )
        if (blind := self._blind(job, pool)) is not None:
            barred = blind if barred is None else barred + blind
            if pool.able and least(pool.penalty + barred) > 0.0:
                raise ec_compatibility.unreadable()
        ready, first = self._ready(job, pool, hits)
        if job.waits_for_media:
            queue, ready, first = np.maximum(queue, ready), pool.none, -1
        tail = request.prompt_tokens - first if first >= 0 else 0
        costs = StageCosts(
            stage, pool, pool.penalty, request.prompt_tokens, job.new_tokens, request.block_size,
            hits, queue, work, decode, ready, tail, request.session,
        )  # fmt: skip
        return self._pick(costs, job, barred)

    def _blind(self, job: Job, pool: Pool) -> Floats | None:
        """Infinite for workers that have not all of the media and can read no encoder's embeddings;
        None if all can. [rows]"""
        encode = job.fleet.pools["encode"]
        if not job.items or not ec_compatibility.mixed(encode, pool):
            return None
        barred = ec_compatibility.readers(encode, pool)
        if self._policy.sees_media and not job.request.predicted:
            barred[job.hits(pool) >= job.media_end] = 0.0
        return barred

    def _ready(self, job: Job, pool: Pool, hits: Floats) -> tuple[Floats, int]:
        if not job.items:
            return hits, -1
        return self._media.ready(job.fleet, job.items, pool, hits, job.now_ms)

    def _decode(self, job: Job, pool: Pool, barred: Floats | None = None) -> Choice:
        request, hits, none = job.request, job.hits(pool), pool.none
        cost = decode_ms(pool, request.prompt_tokens, job.new_tokens, request.block_size, hits)
        costs = StageCosts(
            DECODE, pool, pool.penalty, request.prompt_tokens, job.new_tokens, request.block_size,
            hits, none, none, cost, none, 0, request.session,
        )  # fmt: skip
        return self._pick(costs, job, barred)

    def _pick(self, costs: StageCosts, job: Job, barred: Floats | None) -> Choice:
        penalty = busy(costs.pool, costs.stage, costs.queue_ms, self._config)
        slow = too_slow(costs.pool, job.request) if costs.stage in (DECODE, COMBINED) else None
        if slow is not None:
            penalty = penalty + slow
        if job.avoid:
            never = avoided(costs.pool, job.avoid)
            barred = never if barred is None else barred + never
        if job.request.adapter:
            never = without_adapter(job.fleet, costs.pool, job.request.adapter)
            barred = never if barred is None else barred + never
        if barred is not None:
            penalty = penalty + barred
        if not costs.pool.able or (penalty is not costs.pool.penalty and least(penalty) > 0.0):
            raise refusal(
                costs.pool,
                costs.stage,
                costs.queue_ms,
                barred if job.avoid or job.request.adapter else None,
            )
        costs.penalty = penalty
        return chosen(costs, self._policy.pick(costs), job.fleet)


def _nobody(job: Job, *, enforced: bool) -> Unavailable:
    prefill, decode = job.fleet.pools["prefill"], job.fleet.pools["decode"]
    wanted = "prefill" if decode.able else "decode"
    problem = f"no {wanted} worker is up"
    if not enforced:
        return Unavailable(problem, code=f"no_{wanted}", retry_after_s=1.0)
    if prefill.able and decode.able:
        problem = "no decode worker takes the KV of a prefill worker that is up"
    return Unavailable(
        f"{problem}, and --enforce-disagg lets no worker do both",
        code="disagg_unavailable",  # proxies do not take it for a master that has just started
        retry_after_s=1.0,
    )
