"""Requests relayed to workers that render themselves: taken, timed, answered, errors included."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial

from protocol.errors import DeadlineExceeded, InternalError, RequestAborted, TriptychError
from proxy.gateway import Gateway
from proxy.relay.bodies import RequestBody
from proxy.relay.media import may_hold_media
from proxy.relay.model_list import OwnNames
from proxy.relay.request import ClientRequest
from proxy.relay.request_state import RelayedRequest
from proxy.relay.response import ClientResponse
from proxy.relay.stages import RelayStages
from proxy.request_state import Caller
from proxy.upstream.exchange import Exchange
from proxy.upstream.failures import Refused
from proxy.upstream.time_limits import Alarm
from services.http.callers import tenant_of
from services.http.records import traced_headers

logger = logging.getLogger(__name__)
_BYTES_PER_TOKEN = 4  # about a mean of text; the queue only compares
_TENANTS = 1024  # whose digests are kept
_LONGEST_MODEL = 128  # characters of a model's name in a record
_INLINE = 1 << 20  # bytes of a body that is parsed without leaving the event loop


class Relay:
    """What the listener hands requests to. `close` waits for what it still tells workers."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._metrics = gateway.metrics
        self._fleet = gateway.fleet
        self._planner = gateway.planner
        config = gateway.config
        self._stages = RelayStages(gateway)
        self._traffic = gateway.metrics.traffic
        self.max_body_bytes = config.max_body_bytes
        self.bodies = gateway.bodies
        # Bound here: one call less for each request.
        self.enter, self.leave = gateway.in_flight.enter, gateway.in_flight.leave
        self._authorization = config.authorization.encode()
        # Workers never see the key that a client has for this proxy: they get their own.
        self._keyed = config.asks_for_api_keys
        self._callers: dict[bytes, Caller] = {}
        self._deadlines: list[_Deadline] = []
        self._tracer = gateway.tracer
        self._min_priority = config.min_priority
        self._parse = partial(RequestBody.parse, references=config.allow_media_references)
        self._names = OwnNames(gateway.fleet, config.served_names)

    async def close(self) -> None:
        await self._stages.close()

    @property
    def takes_any(self) -> bool:
        return self._fleet.relayed != "none"

    @property
    def takes_all(self) -> bool:
        return self._fleet.relayed == "all"

    def takes(self, body: bytes) -> bool:
        """Whether a request could meet a worker that speaks only this dialect."""
        return self.takes_all or (self.takes_any and may_hold_media(body))

    def observe(self, error: TriptychError) -> None:
        """Count an error that a client is answered with."""
        if isinstance(error, RequestAborted):
            self._metrics.aborted.inc()
        else:
            self._metrics.errors.labels(error.code).inc()

    def over(self, reply: ClientResponse) -> None:
        """Have the request's log line written."""
        if reply.record.kept:
            self._gateway.over(reply.record, relayed=True)

    def keeps_record(self, request_id: bytes) -> bool:
        """Whether requests are written to the log, or the page shows this one."""
        gateway = self._gateway
        return gateway.log.writes or gateway.recent.wants(request_id)

    async def answer(
        self,
        client: ClientRequest,
        response: ClientResponse,
        source: Callable[[Exchange | None], None],
    ) -> None:
        """Answer a request; cancelled if the client leaves, which ends all its stages.

        `source` is told whose stream is being forwarded, so that it can be paused.
        """
        metrics, start = self._metrics, time.monotonic()
        self._traffic.received += len(client.body)
        response.record.bytes_in = len(client.body)
        recent = self._gateway.recent
        if response.record.kept and recent.wants(client.request_id):
            recent.begun(response.record)
        response.record.trace_headers = traced_headers(client.headers)
        if self._tracer is not None:
            self._tracer.begin(response.record)
        client.trace(response.record.trace_headers)
        caller = self._caller(client)
        # In this order: the client's key goes before the workers' own takes its place.
        own_key = not self._keyed and bool(client.authorization or not self._authorization)
        if self._keyed:
            client.forget_authorization()
        client.authorize(self._authorization)
        deadline = self._deadlines.pop() if self._deadlines else _Deadline()
        try:
            seconds = client.timeout_s(self._gateway.config.request_timeout)
            deadline.begin(seconds)
            body = await self._read(client)
            client.name(body.fields.get("request_id"))
            request = RelayedRequest(
                deadline=start + seconds,
                request_id=client.request_id.decode("latin-1"),
                priority=body.priority(self._min_priority),
                caller=caller,
                own_key=own_key,
                client=client,
                body=body,
                response=response,
                source=source,
                start=start,
                record=response.record,
            )
            if request.record.kept:
                _describe(request)
            await self._run(request)
            metrics.e2e.observe(time.monotonic() - start)
        except asyncio.CancelledError:
            if not deadline.passed:
                raise  # counted by the listener, which knows why
            self._fail(response, DeadlineExceeded("the request's deadline has passed"))
        except Refused as refused:
            self._refuse(response, refused)
        except Exception as error:
            self._fail(response, _in_our_tree(error, client))
        finally:
            deadline.end()
            self._deadlines.append(deadline)

    async def _run(self, request: RelayedRequest) -> None:
        """As a request may begin."""
        # Without a context: that would take every request longer.
        admission, tenant = self._planner.admission, request.caller.tenant
        if admission is not None and not admission.try_enter(tenant):
            await admission.wait(request, len(request.body.data_urls.small) / _BYTES_PER_TOKEN)
        try:
            await self._stages.run(request)
        finally:
            if admission is not None:
                admission.leave(tenant)

    async def _read(self, client: ClientRequest) -> RequestBody:
        """With what has to be known of a request before it is admitted."""
        if len(client.body) <= _INLINE:
            request = self._parse(client.body)
        else:
            request = await self.bodies.decoded(client.body, self._parse)
        if client.is_chat and (self._fleet.encode or self._gateway.frontend is not None):
            request.find_media(self._gateway.config.limit_mm_per_prompt)
        self._names.rename(request)
        self._fleet.models.of(request.model)
        return request

    def _caller(self, client: ClientRequest) -> Caller:
        """Named by a digest of the `Authorization` header, which is made once."""
        given, session = client.authorization, client.session
        known = self._callers.get(given)
        if known is None:
            if len(self._callers) >= _TENANTS:
                # Clients make up keys at will: the digests must not pile up.
                self._callers.clear()
            known = self._callers[given] = Caller(tenant_of(given))
        return Caller(known.tenant, session) if session else known

    def _refuse(self, response: ClientResponse, refused: Refused) -> None:
        """A client hears of its own faults in the worker's words."""
        if refused.again or response.started:
            self._fail(response, refused)
        else:
            self.observe(refused)
            response.record.outcome = refused.code
            response.whole(refused.told())

    def _fail(self, response: ClientResponse, error: TriptychError) -> None:
        self.observe(error)
        response.fail(error)


class _Deadline:
    """Cancels the task that begins it once so many seconds are over, unless it is ended before; for
    one task after the other."""

    # `asyncio.timeout` does the same at three times the cost.

    def __init__(self) -> None:
        self.passed = False
        self._task: asyncio.Task[None] | None = None
        self._alarm = Alarm(asyncio.get_running_loop(), self._pass)

    def begin(self, seconds: float) -> None:
        self._task = asyncio.current_task()
        self._alarm.set(seconds)

    def end(self) -> None:
        self.passed, self._task = False, None
        self._alarm.stop()

    def _pass(self) -> None:
        self.passed = True
        if self._task is not None:
            self._task.cancel()


def _describe(request: RelayedRequest) -> None:
    """What the request's body says, for its record."""
    record, body = request.record, request.body
    model = body.fields.get("model")
    # Cut: records of requests that have ended are kept, and a body may be 128 MB long.
    record.model = model[:_LONGEST_MODEL] if type(model) is str else ""
    record.streamed, record.media = body.stream, len(body.items)


def _in_our_tree(error: Exception, client: ClientRequest) -> TriptychError:
    if isinstance(error, TriptychError):
        return error
    logger.error("the request to %s failed", client.path, exc_info=error)
    return InternalError("internal error")
