"""One HTTP answer of a mock worker, on which a fault may fall."""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from aiohttp import web

from protocol.errors import InternalError, TriptychError, Unavailable
from protocol.generate import INSTANCE_HEADER
from protocol.types import RequestOutput
from services.http.streams import DONE, sse
from services.mock.faults import Fault
from services.mock.instance import Instance

JSON = "application/json"
_HTML = b"<html><body><h1>Welcome</h1><p>This is not the page you wanted.</p></body></html>"
_GARBAGE = b"\x00\xff\xfe}{not json\x80"
_BEFORE_WORK = ("hang", "die", "error", "drop")

Fall = Callable[[Fault], Awaitable[None]]


class Cut(Exception):
    """The connection is to be cut."""


class Answering:
    """A request and what is said to it. `begin` comes first: it reads `body`."""

    def __init__(
        self, instance: Instance, request: web.BaseRequest, refuse: Callable[[float], None]
    ) -> None:
        """`refuse` closes the port that the request came to, see `Instance.begin`."""
        self.instance = instance
        self.request = request
        self.refuse = refuse
        self.body = b""
        self._fault: Fault | None = None
        self._headers = {INSTANCE_HEADER: instance.settings.instance_id}
        given = _plain(request.headers.get("x-request-id", ""))
        if given and instance.config.enable_request_id_headers:
            self._headers["x-request-id"] = given

    @property
    def request_id(self) -> str:
        """Unique even if clients repeat theirs."""
        given = _plain(self.request.headers.get("x-request-id", ""))
        name = uuid.uuid4().hex
        return f"{given[:128]}-{name[:8]}" if given else name

    async def begin(self) -> None:
        """Read the request and draw the fault; one that comes before any work falls here."""
        self.body = await self.request.read()
        fault = self._fault = self.instance.faults.draw(self.request.path)
        if fault is not None and not fault.after_tokens and fault.kind in _BEFORE_WORK:
            await self._fall(fault)

    async def _fall(self, fault: Fault) -> None:
        """Faults instead of an answer; the others are for the code that writes the answer."""
        match fault.kind:
            case "hang":
                # Until the client leaves: the server cancels the handler then.
                await asyncio.Event().wait()
            case "die":
                # As a process that is killed: nothing is said or cleaned up.
                os._exit(1)
            case "drop":
                raise Cut
            case "error" if fault.status == 503:
                raise Unavailable("a fault was asked for")
            case "error":
                error = InternalError("a fault was asked for")
                error.status = fault.status
                raise error
            case _:
                pass

    def spoil(self, outputs: Sequence[RequestOutput]) -> None:
        """Faults in what is said rather than in how."""
        fault = self._fault
        if fault is None:
            return
        if fault.kind == "wrong_count":
            for output in outputs:
                if output.token_ids:
                    output.token_ids = [*output.token_ids, output.token_ids[-1]]
        elif fault.kind == "wrong_handle":
            for output in outputs:
                if output.kv_transfer_params:
                    name = self._other(output.request_id)
                    output.kv_transfer_params = {
                        **output.kv_transfer_params, "remote_request_id": name
                    }  # fmt: skip

    def _other(self, request_id: str) -> str:
        """A request whose KV is held here, or one that was never made."""
        names = self.instance.engine.offers.names()
        return next((name for name in names if name != request_id), f"{request_id}-other")

    @property
    def wrong_handles(self) -> bool:
        return self._fault is not None and self._fault.kind == "wrong_handle"

    async def whole(self, body: bytes) -> web.StreamResponse:
        """An answer to work that is not streamed."""
        if self._fault is not None:
            await self._fall(self._fault)
        return self._response(body)

    def json(self, value: object) -> web.StreamResponse:
        """Any other answer."""
        return self._response(msgspec.json.encode(value))

    def _response(self, body: bytes) -> web.StreamResponse:
        kind = self._fault.kind if self._fault is not None else ""
        if kind == "garbage":
            body = _GARBAGE
        elif kind == "half_json":
            body = body[: len(body) // 2]
        elif kind == "content_type":
            return web.Response(body=_HTML, content_type="text/html", headers=self._headers)
        return web.Response(body=body, content_type=JSON, headers=self._headers)

    def plain(self, text: str) -> web.StreamResponse:
        return web.Response(text=text, headers=self._headers)

    def empty(self, status: int = 200) -> web.StreamResponse:
        return web.Response(status=status, headers=self._headers)

    def error(self, error: TriptychError) -> web.StreamResponse:
        """Any error of the tree in OpenAI's form."""
        self.instance.observe(error)
        headers = dict(self._headers)
        if error.retry_after_s is not None:
            headers["retry-after"] = str(max(1, round(error.retry_after_s)))
        body = msgspec.json.encode(error.to_openai())
        return web.Response(body=body, content_type=JSON, status=error.status, headers=headers)

    async def stream(self) -> EventWriter:
        """The head of a stream is sent; what follows goes through the writer."""
        fault = self._fault
        html = fault is not None and fault.kind == "content_type"
        kind = "text/html" if html else "text/event-stream"
        headers = {"cache-control": "no-cache", "content-type": kind, **self._headers}
        response = web.StreamResponse(headers=headers)
        await response.prepare(self.request)
        return EventWriter(response, self._fault, self._fall)

    def cut(self) -> None:
        """Cut the connection, also amid an answer."""
        if self.request.transport is not None:
            self.request.transport.abort()


class EventWriter:
    """Server-sent events, and the fault that falls once enough tokens are sent."""

    def __init__(self, response: web.StreamResponse, fault: Fault | None, fall: Fall) -> None:
        self.response = response
        self._fault = fault
        self._fall = fall
        self._sent = 0
        self._fallen = False

    async def send(self, events: Sequence[tuple[bytes, int]]) -> None:
        """Events with the number of tokens in each."""
        if self._fault is None:
            await self.response.write(b"".join([sse(data) for data, _ in events]))
            return
        # One by one, as a fault may fall between two tokens of a step.
        for data, tokens in events:
            await self._send_one(self._fault, data)
            self._sent += tokens
            if self._fault.after_tokens and self._sent >= self._fault.after_tokens:
                await self._fall(self._fault)

    async def _send_one(self, fault: Fault, data: bytes) -> None:
        due = self._sent >= fault.after_tokens and not self._fallen
        if due and fault.kind in ("garbage", "half_json", "content_type"):
            self._fallen = True
            data = {"garbage": _GARBAGE, "half_json": data[: len(data) // 2]}.get(fault.kind, _HTML)
        await self.response.write(sse(data))

    async def end(self) -> web.StreamResponse:
        """The end mark."""
        kind = self._fault.kind if self._fault is not None else ""
        if kind == "no_end":
            await asyncio.Event().wait()
        with contextlib.suppress(ConnectionError):
            if kind != "no_done":
                await self.response.write(DONE)
            await self.response.write_eof()
        return self.response


def _plain(value: str) -> str:
    """A header's value, empty if it is not of ASCII: it would come back in answers."""
    return value if value.isascii() else ""
