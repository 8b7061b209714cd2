"""Requests relayed to workers that render themselves: taken, timed, answered, errors included."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from protocol.errors import (
    DeadlineExceeded,
    InternalError,
    RequestAborted,
    TriptychError,
    Unavailable,
)
from proxy.config import ProxyConfig
from proxy.fleet.fleet import Fleet
from proxy.metrics import ProxyMetrics
from proxy.relay.attempts import Attempts
from proxy.relay.bodies import RequestBody, may_hold_media
from proxy.relay.request import ClientRequest
from proxy.relay.request_state import RelayedRequest
from proxy.relay.response import ClientResponse
from proxy.relay.response_validation import Refused
from proxy.relay.stages import Stages
from proxy.upstream.exchange import Exchange

logger = logging.getLogger(__name__)
_RETRY_AFTER_S = 1.0


class Relay:
    """What the edge hands requests to. Owns the connections to workers, which `close` ends."""

    def __init__(self, fleet: Fleet, config: ProxyConfig, metrics: ProxyMetrics) -> None:
        self._fleet = fleet
        self._config = config
        self._metrics = metrics
        self._attempts = Attempts(fleet, config, metrics)
        self._stages = Stages(fleet, config, metrics, self._attempts)
        self.max_body_bytes = config.max_body_bytes
        self.in_flight = 0
        self._authorization = config.authorization.encode()
        metrics.watch_relayed(lambda: self.in_flight)

    async def close(self) -> None:
        await self._stages.close()
        self._attempts.close()

    @property
    def takes_any(self) -> bool:
        return self._fleet.relayed != "none"

    @property
    def takes_all(self) -> bool:
        return self._fleet.relayed == "all"

    def takes(self, body: bytes) -> bool:
        """Whether a request could meet a worker that speaks only this dialect."""
        return self.takes_all or (self.takes_any and may_hold_media(body))

    def enter(self) -> None:
        """`Unavailable` if as many requests as allowed are in the proxy; counted till `leave`."""
        if self.in_flight >= self._config.max_in_flight:
            raise Unavailable("the proxy is full", retry_after_s=_RETRY_AFTER_S)
        self.in_flight += 1

    def leave(self) -> None:
        self.in_flight -= 1

    def observe(self, error: TriptychError) -> None:
        """Count an error that a client is answered with."""
        if isinstance(error, RequestAborted):
            self._metrics.aborted.inc()
        else:
            self._metrics.errors.labels(error.code).inc()

    async def answer(
        self, call: ClientRequest, reply: ClientResponse, source: Callable[[Exchange | None], None]
    ) -> None:
        """Answer a request; cancelled if the client leaves, which ends all its stages.

        `source` is told whose stream is being forwarded, so that it can be paused.
        """
        metrics, start = self._metrics, time.monotonic()
        metrics.received(len(call.body))
        call.authorize(self._authorization)
        deadline: _Deadline | None = None
        try:
            deadline = _Deadline(call.timeout_s(self._config.request_timeout))
            await self._stages.run(RelayedRequest(call, self._read(call), reply, source, start))
            metrics.e2e.observe(time.monotonic() - start)
        except asyncio.CancelledError:
            if deadline is None or not deadline.passed:
                self.observe(RequestAborted("the client left"))
                raise
            self._fail(reply, DeadlineExceeded("the request's deadline has passed"))
        except Refused as refused:
            self._refuse(reply, refused)
        except Exception as error:
            self._fail(reply, _in_our_tree(error, call))
        finally:
            if deadline is not None:
                deadline.cancel()

    def _read(self, call: ClientRequest) -> RequestBody:
        request = RequestBody.parse(call.body)
        if self._fleet.encode and call.is_chat:
            request.find_media(self._config.limit_mm_per_prompt)
        return request

    def _refuse(self, reply: ClientResponse, refused: Refused) -> None:
        """A client hears of its own faults in the worker's words."""
        if refused.again or reply.started:
            self._fail(reply, refused.error)
        else:
            self.observe(refused.error)
            reply.whole(refused.answer)

    def _fail(self, reply: ClientResponse, error: TriptychError) -> None:
        self.observe(error)
        reply.fail(error)


class _Deadline:
    """Cancels the task it is made in once so many seconds are over. (`asyncio.timeout` does too, at
    three times the cost.)"""

    def __init__(self, seconds: float) -> None:
        self.passed = False
        self._task = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._pass)

    def cancel(self) -> None:
        self._timer.cancel()

    def _pass(self) -> None:
        self.passed = True
        if self._task is not None:
            self._task.cancel()


def _in_our_tree(error: Exception, call: ClientRequest) -> TriptychError:
    if isinstance(error, TriptychError):
        return error
    logger.error("%s", call.path, exc_info=error)
    return InternalError("internal error")
