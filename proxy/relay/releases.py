"""KV that a prefill worker holds for a request that goes another way, given back."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec

from protocol.generate import ABORT_PATH
from proxy.relay.request_state import RelayedRequest
from proxy.upstream.answer import AnswerLimits
from proxy.upstream.connection_pool import ConnectionPool
from proxy.upstream.failures import CallFailed

_ABORT_S = 2.0


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
        request.media = request.handed = request.prefill = request.cached_tokens = None
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
