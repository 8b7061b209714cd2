"""Which worker encodes an item whose first encoder cannot: encoders by content, and last the worker
that computes with it, where that can encode too."""

from __future__ import annotations

import time

from protocol.errors import TriptychError
from proxy.fleet.fleet import Fleet, NoWorker
from proxy.fleet.worker import Instance
from proxy.placement.planner import Plan
from proxy.request_state import Tries
from proxy.upstream.failures import REFUSED, CallFailed, failure_of


def tries_of(
    mm_hash: str,
    plan: Plan,
    deadline: float,
    request_id: str,
    charged: set[tuple[str, Instance]],
) -> Tries:
    """To encode an item, for as many requests as wait for it. `charged`: of the first of them."""
    return Tries(
        deadline=deadline,
        request_id=request_id,
        charged=charged,
        wanted_model=plan.model,
        also=plan.at if plan.encodes_there(mm_hash) else None,
    )


def another_encoder(fleet: Fleet, mm_hash: str, plan: Plan, tries: Tries) -> Instance:
    """`NoWorker` if there is none. `CallFailed` if the worker that computes with the item cannot
    encode it either: the whole request had better go to another one."""
    found = None
    try:
        found = fleet.by_content(mm_hash, tries.avoid, plan.model, plan.reader)
    except NoWorker:
        if tries.also is None:
            raise
    # One that has failed is found again where no other encoder is left.
    if found is not None and (tries.also is None or found not in tries.avoid):
        return found
    if tries.also is None or is_spent(tries):
        raise CallFailed(f"{plan.at.url} cannot encode a picture", REFUSED, sent=False)
    return tries.also


def is_spent(tries: Tries) -> bool:
    """Whether the worker that would be asked last has failed, or has gone."""
    also = tries.also
    return also is not None and (also in tries.avoid or not also.serves(time.monotonic()))


def pass_blame(state: Tries, at: Instance, tries: Tries, error: TriptychError) -> None:
    """The attempt of a request, `state`, ends as the worker that computes cannot encode an item:
    the end of the attempt tells of that worker, so that the end of the item must not."""
    told = [one for one in tries.blamed if one[1] is at]
    tries.blamed = [one for one in tries.blamed if one[1] is not at]
    failure = failure_of(error)
    # It was not asked where it has gone already; several attempts may find it so.
    if not told and failure.gone and state.charges_first(failure.kind, at):
        told = [(failure.kind, at)]
    state.blamed += told
