"""What a request may not claim, which workers it must not go to again, and what it is told where no
worker is left."""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection

import numpy as np

from protocol.errors import DeadlineExceeded, InvalidRequest, Unavailable
from protocol.placement import ScheduleRequest
from services.master.fleet.columns import Floats
from services.master.fleet.fleet import Fleet
from services.master.fleet.pool import Pool
from services.master.index.prefix_index import KEY_TYPE

_LONGEST_RETRY_S = 30.0


class AllBusy(Unavailable):
    """Workers exist that could do it, but not now: the request may wait."""

    code = "all_busy"


class TooLate(Unavailable):
    """The objective for the first token cannot be met any more."""

    code = "slo_unreachable"


class TooLarge(TooLate):
    """Objectives cannot be kept for all, and this request takes more time than others."""


def too_late(ttft_ms: float, objective_ms: float) -> TooLate:
    """`ttft_ms`: when the first token is foreseen."""
    return TooLate(
        f"the first token is foreseen in {ttft_ms / 1e3:.2f} s, the objective is "
        f"{objective_ms / 1e3:.2f} s",
        retry_after_s=min(_LONGEST_RETRY_S, max(1.0, (ttft_ms - objective_ms) / 1e3)),
    )


def avoided(pool: Pool, avoid: Collection[str]) -> Floats:
    """Infinite for the instances in `avoid`, 0 for others. [rows]"""
    found = np.zeros(len(pool))
    for name in avoid:
        if name and name in pool.ids:
            found[pool.ids.index(name)] = math.inf
    return found


def without_adapter(fleet: Fleet, pool: Pool, adapter: str) -> Floats:
    """Infinite for workers that do not serve an adapter. [rows]"""
    found = np.full(len(pool), math.inf)
    for instance in fleet.by_slot.values():
        if instance.pool is pool and adapter in instance.info.adapters:
            found[instance.row] = 0.0
    return found


def able(pool: Pool, avoid: Collection[str]) -> int:
    """Workers that may be used, but for those in `avoid`."""
    if not avoid or not pool.able:
        return pool.able
    return int(np.count_nonzero(pool.penalty + avoided(pool, avoid) == 0.0))


def others_stay(pool: Pool, barred: Floats) -> bool:
    """Whether a worker that is not `barred` may do it later: a busy one, or one whose breaker is
    open. [rows]"""
    return bool((pool.stays & (barred == 0.0)).any())


def refusal(pool: Pool, stage: str, queue_ms: Floats, barred: Floats | None = None) -> Unavailable:
    """Why no row of a pool can be used; `barred` rows never could."""
    later = pool.able > 0 if barred is None else others_stay(pool, barred)
    if not later:
        return Unavailable(f"no {stage} worker is up", code="no_worker", retry_after_s=1.0)
    soonest = float((queue_ms + pool.penalty).min()) / 1e3
    retry = min(_LONGEST_RETRY_S, max(1.0, soonest / 2))
    return AllBusy(f"all {stage} workers are busy", retry_after_s=retry)


def check_request(request: ScheduleRequest) -> None:
    """Raises `InvalidRequest` or, for a deadline that has passed, `DeadlineExceeded`."""
    if len(request.block_keys) * request.block_size > request.prompt_tokens:
        raise InvalidRequest(
            f"block_keys: {len(request.block_keys)} blocks of {request.block_size} tokens are more "
            f"than the prompt's {request.prompt_tokens}",
            param="block_keys",
        )
    keys = request.block_keys
    try:
        array(KEY_TYPE, keys)  # as messages to other masters pack them
    except OverflowError:
        raise InvalidRequest("block_keys: a key is not of 64 bits", param="block_keys") from None
    if any(item.offset + item.tokens > request.prompt_tokens for item in request.items):
        raise InvalidRequest("items: an item ends after the prompt", param="items")
    if request.deadline_s is not None and request.deadline_s <= 0:
        raise DeadlineExceeded("the deadline has passed", param="deadline_s")


def no_pair(prefill: Pool, decode: Pool, *, enforced: bool) -> Unavailable:
    """No layout fits the request: which stage has no worker. `enforced`: by --enforce-disagg."""
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
