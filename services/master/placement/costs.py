"""One stage of one request priced on every worker of a pool: what a policy chooses from, the worker
that it has chosen, and the numbers behind that for `debug`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from protocol.placement import MediaNeed
from services.master.config import MasterConfig
from services.master.fleet.columns import Floats
from services.master.fleet.fleet import Fleet
from services.master.fleet.instance import Instance
from services.master.fleet.pool import Pool

ENCODE, PREFILL, DECODE, COMBINED = "encode", "prefill", "decode", "combined"
_SHOWN = 5  # workers beside the chosen one, to `debug`


@dataclass(slots=True)
class StageCosts:
    """What a stage of a request costs on each worker of a pool. Arrays are [rows] of it."""

    stage: str  # encode, prefill, decode, or combined (prefill and decode on one worker)
    pool: Pool  # the workers
    penalty: Floats  # 0, or infinite where a worker must not be chosen
    tokens: int  # of the item or the prompt
    new_tokens: int  # expected output
    block_size: int  # tokens to a KV block
    hits: Floats  # tokens whose KV, or whose embeddings, are there
    queue_ms: Floats  # work before the request
    work_ms: Floats  # its encoding or prefill
    # What its decode takes of its own and the others' time, its KV's transfer included
    decode_ms: Floats
    ready_ms: Floats  # until missing embeddings are there
    tail_tokens: int  # what remains to be computed after that at the least; 0 if nothing is missing
    session: str  # requests of one go to one worker where costs do not differ; "" for none
    content: str = ""  # names the picture, of an encode

    @property
    def ttft_ms(self) -> Floats:
        """Predicted time to the end of encode or prefill."""
        own = self.queue_ms + self.work_ms
        if not self.tail_tokens:
            return own
        return np.maximum(own, self.ready_ms + self.tail_tokens * self.pool.token_ms)


def encode_costs(
    pool: Pool, need: MediaNeed, held: Floats, penalty: Floats, now_ms: float, session: str
) -> StageCosts:
    """`held`: tokens of the picture whose embeddings each encoder has. [rows]"""
    none, queue = pool.none, queue_ms(pool, now_ms)
    work = pool.base_ms + need.tokens * pool.token_ms
    return StageCosts(
        ENCODE, pool, penalty, need.tokens, 0, 1, held, queue, work, none, none, 0, session,
        need.mm_hash,
    )  # fmt: skip


def queue_ms(pool: Pool, now_ms: float) -> Floats:
    """Of work before the next request. [rows]"""
    queue: Floats = pool.busy_until - now_ms
    return np.maximum(queue, 0.0, out=queue)


def decode_ms(pool: Pool, prompt: int, new: int, block_size: int, hits: Floats | None) -> Floats:
    """Time this request's output takes there, and by how much it slows down the others.

    A decode step costs a base, so much for each request and so much for each token of context. A
    worker without a free place or enough blocks makes the request wait for others to end. `hits`
    None: the KV is computed there and not transferred.
    """
    # In place from here on: each operator without `=` would make another array of all rows.
    cost: Floats = pool.more_context_ms * prompt
    cost += pool.more_step_ms
    cost *= new
    blocks = math.ceil((prompt + new) / block_size)
    if least(pool.room) <= 0 or least(pool.free_blocks) < blocks:
        mine = pool.step_context_ms * prompt + pool.step_request_ms
        # Others are taken to be as long as this one: of `max_running` one ends every
        # `new / max_running` steps.
        waiting = np.maximum(1.0 - pool.room, 0.0) / pool.max_running
        waiting += np.maximum(blocks - pool.free_blocks, 0.0) / blocks
        cost += (pool.step_now + mine) * waiting * new
    if hits is not None:
        cost += (prompt - hits) * pool.kv_ms
    return cost


def busy(pool: Pool, stage: str, queue_ms: Floats, config: MasterConfig) -> Floats:
    """`penalty`, and infinite where a worker has more to do than the thresholds allow. [rows]"""
    # Where nothing is barred it stays the pool's own array, by which callers know that.
    penalty = pool.penalty
    longest, most = config.busy_queue_ms, config.busy_requests
    if longest and stage != DECODE and len(pool) and queue_ms[queue_ms.argmax()] > longest:
        penalty = np.where(queue_ms > longest, math.inf, penalty)
    if most:
        penalty = np.where(pool.requests >= most, math.inf, penalty)
    # Twice the batch, as --busy-requests says for 0.
    elif stage in (DECODE, COMBINED) and least(pool.room) <= -1.0:
        penalty = np.where(pool.room <= -pool.max_running, math.inf, penalty)
    if stage in (DECODE, COMBINED) and least(pool.spare) <= 0:
        penalty = np.where(pool.spare <= 0, math.inf, penalty)
    return penalty


def least(column: Floats) -> float:
    """The smallest value; faster than `min` for a few hundred."""
    return float(column[column.argmin()]) if len(column) else math.inf


@dataclass(slots=True)
class Choice:
    """The worker `at` a `row` of a stage's costs: `hits`, tokens of the prompt that it holds, and
    ms until the stage would end there."""

    costs: StageCosts
    row: int
    at: Instance
    hits: int
    ttft_ms: float


def chosen(costs: StageCosts, row: int, fleet: Fleet) -> Choice:
    """A row that a policy has picked."""
    at = fleet.by_slot[int(costs.pool.slots[row])]
    ttft = float(costs.queue_ms[row]) + float(costs.work_ms[row])
    if costs.tail_tokens:
        tail = costs.tail_tokens * float(costs.pool.token_ms[row])
        ttft = max(ttft, float(costs.ready_ms[row]) + tail)
    return Choice(costs, row, at, int(costs.hits[row]), ttft)


Option = tuple[Choice, Choice | None]
"""Workers for prefill and decode, or one for both."""


def explain(costs: StageCosts, row: int) -> dict[str, Any]:
    """Of the chosen worker and of those that would have been soonest done, ms and counts."""
    able = np.flatnonzero(costs.penalty == 0.0)
    order = able[np.argsort((costs.ttft_ms + costs.decode_ms)[able], kind="stable")]
    shown = [row, *(int(other) for other in order[:_SHOWN] if other != row)]
    return {
        "chosen": costs.pool.ids[row],
        "able": len(able),
        "workers": {costs.pool.ids[r]: _numbers(costs, r) for r in shown},
    }


def _numbers(costs: StageCosts, row: int) -> dict[str, float]:
    pool = costs.pool
    free = float(pool.free_blocks[row])
    return {
        "hit_tokens": float(costs.hits[row]),
        "queue_ms": float(costs.queue_ms[row]),
        "work_ms": float(costs.work_ms[row]),
        "decode_ms": float(costs.decode_ms[row]),
        "ttft_ms": float(costs.ttft_ms[row]),
        "step_ms": float(pool.step_ms[row]),
        "requests": float(pool.requests[row]),
        "queued_tokens": float(pool.queued_tokens[row]),
        "context_tokens": float(pool.context_tokens[row]),
        "free_blocks": free if math.isfinite(free) else -1.0,
    }
