"""Service level objectives: which of them a placement is foreseen to meet."""

from __future__ import annotations

import math

import numpy as np

from protocol.registry import ScheduleRequest
from services.master.config import MasterConfig
from services.master.fleet.columns import Floats
from services.master.fleet.fleet import Fleet
from services.master.fleet.pool import Pool
from services.master.placement.choice import Choice
from services.master.placement.refusals import too_late

_MARGIN = 0.85  # of an objective: what is foreseen errs


def settle_objectives(request: ScheduleRequest, config: MasterConfig) -> None:
    """What a request does not say is as the flags say."""
    if request.ttft_slo_s is None:
        request.ttft_slo_s = config.ttft_slo
    if request.tpot_slo_s is None:
        request.tpot_slo_s = config.tpot_slo


def too_slow(pool: Pool, request: ScheduleRequest) -> Floats | None:
    """Infinite where one more request makes decode steps longer than its objective, None for no
    objective. A worker without requests takes any: no worker could do better. [rows]"""
    if not request.tpot_slo_s:
        return None
    step = pool.step_now + pool.step_request_ms + pool.step_context_ms * request.prompt_tokens
    late = (step > _MARGIN * request.tpot_slo_s * 1e3) & (pool.requests >= 1.0)
    return np.where(late, math.inf, 0.0)


def foreseen_ttft_ms(prefill: Choice, decode: Choice | None) -> float:
    """Engines of other makers send the first token from decode, once it has the KV."""
    if decode is None or decode.at.info.dialect != "openai":
        return prefill.ttft_ms
    pool, row = decode.costs.pool, decode.row
    moved = (decode.costs.tokens - decode.hits) * float(pool.kv_ms[row])
    return prefill.ttft_ms + moved + float(pool.step_now[row])


def check_objective(request: ScheduleRequest, ttft_ms: float, fleet: Fleet) -> None:
    """`TooLate` if the first token is foreseen too late, and others are in the way. A fleet with
    workers to spare serves as well as it can: were it to refuse, its caches would never fill, and
    a rate that was learnt wrong would never be measured again."""
    if request.ttft_slo_s:
        objective_ms = request.ttft_slo_s * 1e3
        if ttft_ms > _MARGIN * objective_ms and not _has_spare_workers(fleet):
            raise too_late(ttft_ms, objective_ms)


def _has_spare_workers(fleet: Fleet) -> bool:
    """Fewer requests than workers that prefill."""
    pools = fleet.pools
    requests = sum(float(pools[kind].requests.sum()) for kind in ("decode", "combined"))
    prefilling = pools["prefill"].able or pools["decode"].able
    return requests < prefilling + pools["combined"].able
