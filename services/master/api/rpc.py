"""The calls of workers and proxies: JSON or msgpack in, the same out, nothing in between. A
question without a body gets msgpack if that is all it accepts.

They come tens of thousands of times a second in a large fleet, so they pass by the web framework.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from protocol.decoding import accepted
from protocol.errors import InvalidRequest, PayloadTooLarge, TriptychError
from protocol.generate import MSGPACK
from protocol.placement import (
    FINISHED_PATH,
    SCHEDULE_PATH,
    SCHEDULES_PATH,
    FinishedReports,
    ScheduleRequest,
    ScheduleRequests,
)
from protocol.registry import (
    DEREGISTER_PATH,
    DRAIN_PATH,
    HEARTBEAT_PATH,
    REGISTER_PATH,
    SUSPECT_PATH,
    WORKERS_PATH,
    Drain,
    Heartbeat,
    InstanceInfo,
    InstanceName,
    Suspected,
)
from services.admission.ticket import Ticket
from services.http.errors import error_response
from services.http.streams import ended_by, over
from services.master.api.batches import schedules
from services.master.api.service import MasterService

_JSON = b"application/json"
_PACK = MSGPACK.encode()
_PACKED = ((b"content-type", _PACK), (b"accept", _PACK))
_LONGEST_WAIT_S = 60.0
_MOST_FREE = 1 << 16  # bytes of a field that may hold anything
_T = TypeVar("_T")
_Run = Callable[[Scope, Receive, bool], Awaitable[Any]]


class RpcApp:
    """ASGI application in front of another, which gets requests that are no call."""

    def __init__(self, service: MasterService, app: ASGIApp) -> None:
        self._service = service
        self._app = app
        self._calls: Mapping[str, _Call] = {
            REGISTER_PATH: _Call(
                InstanceInfo, service.register, service.networks.check_worker, _Endpoints
            ),
            HEARTBEAT_PATH: _Call(Heartbeat, service.heartbeat),
            DEREGISTER_PATH: _Call(InstanceName, service.deregister),
            DRAIN_PATH: _Call(Drain, service.drain),
            SCHEDULE_PATH: _Call(ScheduleRequest, service.schedule),
            SCHEDULES_PATH: _Call(ScheduleRequests, schedules(service.master, service.metrics)),
            SUSPECT_PATH: _Call(Suspected, service.suspect),
            FINISHED_PATH: _Call(FinishedReports, service.finished),
        }

    @property
    def calls(self) -> tuple[str, ...]:
        """Method and path of each."""
        return (*(f"POST {path}" for path in self._calls), f"GET {WORKERS_PATH}")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        run = self._find(scope) if scope["type"] == "http" else None
        if run is None:
            await self._app(scope, receive, send)
            return
        packed = any(field in _PACKED for field in scope["headers"])
        try:
            answer = await run(scope, receive, packed)
        except TriptychError as error:
            self._service.metrics.errors.labels(error.code).inc()
            await error_response(error)(scope, receive, send)
            return
        if answer is not None:
            await _send(send, answer, packed)
        # A caller that has left gets none; one whose wait the server has ended gets the error.
        elif (ended := ended_by(scope)) is not None:
            await error_response(ended)(scope, receive, send)

    def _find(self, scope: Scope) -> _Run | None:
        if scope["method"] == "GET":
            return self._workers if scope["path"] == WORKERS_PATH else None
        return self._post if scope["method"] == "POST" and scope["path"] in self._calls else None

    async def _post(self, scope: Scope, receive: Receive, packed: bool) -> Any:
        body = await read_body(receive, self._service.config.max_body_bytes)
        answer = None if body is None else await self._calls[scope["path"]](body, packed)
        if isinstance(answer, Ticket):
            ticket = answer
            # Watched while it waits: what is placed for a caller that has left holds load.
            left = over(scope, receive)
            return await unless_left(left, lambda left: self._service.wait(ticket, left))
        return answer

    async def _workers(self, scope: Scope, receive: Receive, packed: bool) -> Any:
        query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        after, wait_s = query.get("after", ""), _seconds(query.get("wait_s", "0"))
        # A GET without a body, still: only behind it does `receive` say that the caller has left.
        if await read_body(receive, 0) is None:
            return None
        left = self._over_or_closing(scope, receive)
        return await unless_left(left, lambda left: self._service.watch.wait(after, wait_s, left))

    async def _over_or_closing(self, scope: Scope, receive: Receive) -> None:
        """A master that ends does not wait for news to tell."""
        reasons = {
            asyncio.ensure_future(over(scope, receive)),
            asyncio.ensure_future(self._service.life.closing.wait()),
        }
        try:
            await asyncio.wait(reasons, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for reason in reasons:
                reason.cancel()


def _seconds(text: str) -> float:
    """Of a wait; too long a one is made shorter."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value >= 0.0:
        raise InvalidRequest("wait_s must be a number of seconds", param="wait_s")
    return min(value, _LONGEST_WAIT_S)


class _Endpoints(msgspec.Struct):
    """What a worker says of itself in a form of its own: of msgpack, no length tells how much there
    is in it, and a byte may be a list."""

    kv_endpoint: msgspec.Raw = msgspec.Raw(b"")
    ec_endpoint: msgspec.Raw = msgspec.Raw(b"")


class _Call:
    """A path's argument and what is done with it, after a `check` that may take its time. `free`:
    fields of it that may hold anything."""

    def __init__(
        self,
        kind: type[Any],
        run: Callable[[Any], Any],
        check: Callable[[Any], Awaitable[None]] | None = None,
        free: type[msgspec.Struct] | None = None,
    ) -> None:
        self._free = None if free is None else msgspec.msgpack.Decoder(free)
        self._json = msgspec.json.Decoder(kind)
        self._msgpack = msgspec.msgpack.Decoder(kind)
        self._run = run
        self._check = check

    async def __call__(self, body: bytes, packed: bool) -> Any:
        argument = self._decode(body, packed)
        if self._check is not None:
            await self._check(argument)
        return self._run(argument)

    def _decode(self, body: bytes, packed: bool) -> Any:
        if not packed:
            return accepted(self._json.decode, body)
        if self._free is not None:
            free = msgspec.structs.asdict(accepted(self._free.decode, body, "msgpack"))
            for name, raw in free.items():
                if len(raw) > _MOST_FREE:
                    raise InvalidRequest(f"{name} is longer than {_MOST_FREE} bytes", param=name)
        return accepted(self._msgpack.decode, body, "msgpack")


async def read_body(receive: Receive, limit: int) -> bytes | None:
    """The request's body, None if the caller has left; `PayloadTooLarge` over `limit` bytes."""
    message = await receive()
    if message["type"] == "http.disconnect":
        return None
    # A list: adding to bytes would copy all of them with each piece.
    pieces: list[bytes] = [message.get("body", b"")]
    size = len(pieces[0])
    while message.get("more_body", False) and size <= limit:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
    if size > limit:
        raise PayloadTooLarge(f"the request body is larger than {limit} bytes (--max-body-bytes)")
    return b"".join(pieces)


async def unless_left(
    leaving: Coroutine[Any, Any, None], answer: Callable[[asyncio.Future[Any]], Awaitable[Any]]
) -> Any:
    """The answer, which may come early once its argument is done: `leaving` has ended."""
    left = asyncio.ensure_future(leaving)
    try:
        return await answer(left)
    finally:
        left.cancel()


async def _send(send: Send, answer: Any, packed: bool) -> None:
    body = msgspec.msgpack.encode(answer) if packed else msgspec.json.encode(answer)
    headers = [
        (b"content-type", _PACK if packed else _JSON),
        (b"content-length", b"%d" % len(body)),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
