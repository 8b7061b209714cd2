"""Which workers a request could go to, and what that would cost: prefill and decode apart, both on
one worker, or the little that a decode worker has not of a prompt there."""

from __future__ import annotations

import itertools
import math

import numpy as np

from protocol.errors import Unavailable
from services.master.config import MasterConfig
from services.master.fleet.columns import Floats
from services.master.fleet.pool import Pool
from services.master.placement.compatibility import (
    ec_mixed,
    kv_apart,
    kv_mixed,
    partnered,
    readers,
    takers,
    unreadable,
)
from services.master.placement.costs import (
    COMBINED,
    DECODE,
    PREFILL,
    Choice,
    Option,
    StageCosts,
    busy,
    chosen,
    decode_ms,
    least,
    queue_ms,
)
from services.master.placement.job import Job
from services.master.placement.media import MediaPlacer
from services.master.placement.objectives import too_slow
from services.master.placement.policies.base import Policy
from services.master.placement.refusals import (
    AllBusy,
    able,
    avoided,
    no_pair,
    refusal,
    without_adapter,
)


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
            pools, enforced = job.fleet.pools, self._config.enforce_disagg
            raise refused or no_pair(pools["prefill"], pools["decode"], enforced=enforced)
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
        if job.request.alone:
            return [pool for pool in (combined, decode) if able(pool, job.avoid)]
        parts = able(prefill, job.avoid), able(decode, job.avoid)
        if self._config.enforce_disagg:
            return [None] if all(parts) and not kv_apart(prefill, decode) else []
        both = able(combined, job.avoid)
        blind = self._blind(job, prefill)
        unread = blind is not None and least(prefill.penalty + blind) > 0.0
        if not all(parts) or kv_apart(prefill, decode) or unread:
            alone = combined if both else decode
            return [alone] if alone.count else []
        if not both:
            return [None]
        if self._policy.compares:
            return [None, combined]
        return [None, combined] if self._policy.splits(sum(parts), both) else [combined, None]

    def _pair(self, job: Job) -> tuple[Choice, Choice]:
        prefill, decode = job.fleet.pools["prefill"], job.fleet.pools["decode"]
        if not kv_mixed(prefill, decode):
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
                raise unreadable()
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
        if not job.items or not ec_mixed(encode, pool):
            return None
        barred = readers(encode, pool)
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
        # A worker that would wait for encoders has no more to do for that: it stays open to others.
        queue = queue_ms(costs.pool, job.now_ms) if job.waits_for_media else costs.queue_ms
        penalty = busy(costs.pool, costs.stage, queue, self._config)
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
            lasting = barred if job.avoid or job.request.adapter else None
            raise refusal(costs.pool, costs.stage, queue, lasting)
        costs.penalty = penalty
        return chosen(costs, self._policy.pick(costs), job.fleet)
