"""Service level objectives: which of them a placement is foreseen to meet."""

from __future__ import annotations

import math

import numpy as np

from protocol.placement import ScheduleRequest
from services.master.config import MasterConfig
from services.master.fleet.columns import Floats
from services.master.fleet.fleet import Fleet
from services.master.fleet.pool import Pool
from services.master.placement.costs import Choice
from services.master.placement.refusals import too_late

# Of the objective, as what is foreseen errs: less where workers measure themselves than where their
# speed is learnt from how long calls take. There 0.85 costs a tenth of the goodput past capacity,
# see docs/benchmarks/fleet.md.
_TTFT_MARGIN, _LEARNT_MARGIN = 0.85, 0.7
# No step is shorter; a quotient by less may be more than a float can hold.
_LEAST_TPOT_MS = 1e-3


def settle_objectives(request: ScheduleRequest, config: MasterConfig) -> None:
    """What a request does not say is as the flags say. A retry has no objective for its first
    token: were it refused, its client would lose what the fleet has taken on."""
    if request.ttft_slo_s is None:
        request.ttft_slo_s = config.ttft_slo
    if request.retry:
        request.ttft_slo_s = 0.0
    if request.tpot_slo_s is None:
        request.tpot_slo_s = config.tpot_slo


def haste_of(request: ScheduleRequest) -> float:
    """Decode steps per ms that a request's objective asks for, 0 for no objective."""
    return 1.0 / max(1e3 * request.tpot_slo_s, _LEAST_TPOT_MS) if request.tpot_slo_s else 0.0


def too_slow(pool: Pool, request: ScheduleRequest) -> Floats | None:
    """Infinite where one more request makes decode steps longer than its objective, or the
    strictest one of the requests that are there; None if there is no objective. A worker without
    requests takes any: no other could do better. [rows]

    There is no margin: a request's time per token is the mean of many steps, and its neighbours
    end. Simulated, a margin of 0.85 cost 3 to 9 % of the sustained goodput.
    """
    mine = haste_of(request)
    if not mine and not (len(pool) and pool.haste[pool.haste.argmax()]):
        return None
    step = pool.step_now + pool.step_request_ms + pool.step_context_ms * request.prompt_tokens
    late = (step * np.maximum(pool.haste, mine) > 1.0) & (pool.requests >= 1.0)
    return np.where(late, math.inf, 0.0)


def check_objective(
    request: ScheduleRequest, prefill: Choice, decode: Choice | None, fleet: Fleet
) -> None:
    """`TooLate` if the first token is foreseen too late, and others are in the way. A fleet with
    workers to spare serves as well as it can: were it to refuse, its caches would never fill, and
    a rate that was learnt wrong would never be measured again."""
    if not request.ttft_slo_s:
        return
    objective_ms, ttft_ms = request.ttft_slo_s * 1e3, _foreseen_ttft_ms(prefill, decode)
    learnt = prefill.costs.pool.told(prefill.row) is None
    margin = _LEARNT_MARGIN if learnt else _TTFT_MARGIN
    if ttft_ms > margin * objective_ms and not has_spare_workers(fleet):
        raise too_late(ttft_ms, objective_ms)


def _foreseen_ttft_ms(prefill: Choice, decode: Choice | None) -> float:
    """Engines of other makers send the first token from decode, once it has the KV."""
    if decode is None or decode.at.info.dialect != "openai":
        return prefill.ttft_ms
    pool, row = decode.costs.pool, decode.row
    moved = (decode.costs.tokens - decode.hits) * float(pool.kv_ms[row])
    return prefill.ttft_ms + moved + float(pool.step_now[row])


def has_spare_workers(fleet: Fleet) -> bool:
    """Fewer requests than workers that prefill."""
    pools = fleet.pools
    requests = sum(float(pools[kind].requests.sum()) for kind in ("decode", "combined"))
    prefilling = pools["prefill"].able or pools["decode"].able
    return requests < prefilling + pools["combined"].able
