"""Which worker each stage of a relayed request runs on, and what is given back to it.

Without a master a stage's worker is chosen when the stage begins. Embeddings that encoders push go
to one worker, and to one of its data-parallel ranks: where the fleet has such consumers, the one of
a request with media is chosen before the media are encoded, and kept until the attempt ends.
"""

from __future__ import annotations

import asyncio
import contextlib

import msgspec

from protocol.generate import ABORT_PATH
from protocol.types import Role
from proxy.fleet.fleet import Fleet
from proxy.fleet.worker import Instance
from proxy.relay.request_state import Consumer, RelayedRequest
from proxy.upstream.answer import AnswerLimits
from proxy.upstream.connection_pool import ConnectionPool
from proxy.upstream.failures import CallFailed

_ABORT_S = 2.0
_COMPUTING: tuple[Role, Role] = ("prefill", "decode")


class StageWorkers:
    """Chooses for one attempt at a time."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def prefills_apart(self, request: RelayedRequest) -> bool:
        """Whether another worker than the one that decodes is still to prefill. If all of one stage
        are down, those of the other do both."""
        fleet = self._fleet
        if request.prefill is not None or not fleet.prefill or request.body.scores_prompt:
            return False
        if request.plan is not None:
            return request.plan.prefill is not None
        return all(fleet.any_usable(role, request.model) for role in _COMPUTING)

    def of(self, request: RelayedRequest, stage: Role) -> Instance:
        """The worker for a stage: as a master has planned it, as the embeddings were sent, or the
        least loaded one. Raises `NoWorker`."""
        if request.plan is not None:
            planned = request.plan.prefill if stage == "prefill" else request.plan.decode
            if planned is not None:
                return planned
        if request.consumer is not None and request.consumer.stage == stage:
            return request.consumer.instance
        return self.decoder(request) if stage == "decode" else self._chosen(request, stage)

    def decoder(self, request: RelayedRequest) -> Instance:
        """The least loaded worker for the answer, which can take the KV if another one has
        prefilled. Raises `NoWorker`."""
        fleet, kind, model = self._fleet, request.kv_compatibility, request.model
        if kind:
            able = fleet.usable("decode", request.avoid, model)
            if fitting := [one for one in able if one.kv_compatibility in ("", kind)]:
                return fleet.lightest(fitting)
        both = request.prefill is None and not fleet.any_usable("decode", model)
        if both and fleet.any_usable("prefill", model):
            return self._chosen(request, "prefill")
        return self._chosen(request, "decode")

    def _chosen(self, request: RelayedRequest, stage: Role) -> Instance:
        return self._fleet.choose(stage, request.avoid, request.model)

    async def consumer(self, request: RelayedRequest) -> Consumer:
        """The worker that is to have the request's embeddings, and its rank with the fewest
        requests; both are the request's until `leave`. Raises `NoWorker`."""
        stage: Role = "prefill" if self.prefills_apart(request) else "decode"
        return Consumer.bound(self.of(request, stage), stage)

    @staticmethod
    def leave(request: RelayedRequest) -> None:
        """The attempt has ended. Another one begins with the media themselves, as embeddings that
        were pushed are at one worker alone, unless that has prefilled the prompt already."""
        consumer, request.consumer = request.consumer, None
        if consumer is not None:
            consumer.leave()
            if request.prefill is None:
                request.media = None


class Releases:
    """Tells prefill workers without letting requests wait for it; `close` waits."""

    def __init__(self) -> None:
        self._under_way: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        if self._under_way:
            await asyncio.wait(self._under_way)

    def forget(self, request: RelayedRequest) -> None:
        """Reset the request, and release the KV that a prefill worker holds for it."""
        handed, pool = request.handed, request.prefill
        # The next attempt begins anew: what encoders and prefill made belongs to this one.
        request.media = request.handed = request.prefill = request.cached_tokens = None
        request.kv_compatibility = ""
        name = handed.get("remote_request_id") if handed is not None else None
        if pool is not None and isinstance(name, str):
            task = asyncio.create_task(_release(pool, request.fields, name))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)


async def _release(pool: ConnectionPool, fields: bytes, request_id: str) -> None:
    """Bounded by `_ABORT_S`; a worker that cannot be told frees by its own lease."""
    body = (msgspec.json.encode({"request_ids": [request_id]}),)
    limits = AnswerLimits(_ABORT_S, _ABORT_S, 1 << 20)
    with contextlib.suppress(CallFailed):
        exchange, _ = await pool.ask(ABORT_PATH, fields, body, limits)
        exchange.abort()
