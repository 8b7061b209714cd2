"""Routes of a proxy that relays: what a worker says, passed on."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import AsyncGenerator, Collection

import msgspec
from fastapi import APIRouter, Request, Response

from protocol.anthropic import MESSAGES_PATH
from protocol.errors import TriptychError
from protocol.openai import CHAT_PATH, COMPLETIONS_PATH
from proxy.gateway import Gateway
from proxy.relay.bodies import RequestBody
from proxy.relay.forwarder import Forwarder, PassedRequest
from proxy.relay.lacking import NoRoute
from proxy.relay.own_names import OwnNames
from proxy.relay.passed_routes import PASSED, PassedRoute
from proxy.relay.worker_headers import for_worker
from proxy.request_state import Caller
from proxy.upstream.answer import Answer
from proxy.upstream.failures import Refused
from services.frontend.anthropic.answer import error_of
from services.http.browsers import is_form, not_form
from services.http.callers import MAX_SESSION, SESSION_HEADER, caller_of, deadline_of
from services.http.counting import counted
from services.http.deadline import Deadline
from services.http.openai import JSON
from services.http.streams import EventStream, error_event, sse, while_connected

# Of a form: the field's value up to the next boundary, which follows in a line of its own.
_MODEL_FIELD = re.compile(rb'name="model"\r\n(?:[^\r\n]+\r\n)*\r\n([^\r\n]{1,256})\r\n--')


class Passing:
    """Answers the routes of one proxy that are passed on."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._metrics = gateway.metrics
        self._forwarder = Forwarder(gateway)
        self._names = OwnNames(gateway.fleet, gateway.config.served_model_name)
        self._keyed = gateway.config.asks_for_api_keys

    async def answer(self, route: PassedRoute, request: Request) -> Response:
        """The worker's answer, whole or as a stream whose first events are there already."""
        deadline = deadline_of(request.headers, self._gateway.config.request_timeout)
        async with self._gateway.bodies.read(request) as body:
            answers = self._forwarder.run(self._read(route, request, body, deadline))
            try:
                first = await while_connected(request, anext(answers), deadline)
            except Refused as refused:
                return self._refused(refused)
        if first.is_stream and first.status == 200:
            failed = functools.partial(_failed, route.path)
            events = self._events(first, answers, route.path)
            headers = {"content-type": first.content_type.decode("latin-1")}
            return EventStream(events, headers, deadline, failed)
        async for _ in answers:  # to its end: the call is over
            pass
        return _whole(first)

    def _read(
        self, route: PassedRoute, request: Request, body: bytes, deadline: Deadline
    ) -> PassedRequest:
        headers = for_worker(request, keyed=self._keyed)
        caller = Caller(
            caller_of(request).tenant, request.headers.get(SESSION_HEADER, "")[:MAX_SESSION]
        )
        passed = PassedRequest(
            deadline=deadline.at,
            request_id=headers["x-request-id"],
            caller=caller,
            route=route,
            body=body,
            headers=headers,
        )
        if route.form:
            self._read_form(passed, request)
        elif route.method == "POST":
            self._read_json(passed)
        else:
            passed.model = request.query_params.get("model", "")
        return passed

    @staticmethod
    def _read_form(passed: PassedRequest, request: Request) -> None:
        given = request.headers.get("content-type", "")
        if not is_form(given.encode("latin-1")):
            raise not_form(given)
        passed.headers["content-type"] = given
        if (named := _MODEL_FIELD.search(passed.body)) is not None:
            passed.model = named[1].decode(errors="replace")

    def _read_json(self, passed: PassedRequest) -> None:
        read = RequestBody.parse(passed.body)
        self._names.rename(read)
        passed.headers["content-type"] = JSON
        passed.body, passed.priority = b"".join(read.bare), read.priority
        passed.model, passed.stream = read.model, read.stream

    async def _events(
        self, first: Answer, answers: AsyncGenerator[Answer, None], path: str
    ) -> AsyncGenerator[bytes, None]:
        """A stream that breaks ends with one event that says so."""
        try:
            async with contextlib.aclosing(answers):
                yield first.body
                async for more in answers:
                    yield more.body
        except TriptychError as error:
            self._metrics.errors.labels(error.code).inc()
            yield _failed(path, error)

    def _refused(self, refused: Refused) -> Response:
        """A client hears of its own faults in the worker's words."""
        if refused.again:
            raise refused
        self._metrics.errors.labels(refused.code).inc()
        return _whole(refused.answer)


def passing(gateway: Gateway, taken: Collection[str] = ()) -> APIRouter:
    """The routes of `PASSED` but those `taken`, which the proxy answers by itself."""
    routes, work = APIRouter(), Passing(gateway)

    def add(route: PassedRoute) -> None:
        @counted(gateway.in_flight.counted)
        async def passed(request: Request) -> Response:
            return await work.answer(route, request)

        does = f"{route.does} Answered by a worker that has the route."
        routes.add_api_route(route.path, passed, methods=[route.method], description=does)

    for route in PASSED:
        if route.path not in taken:
            add(route)
    return routes


def _whole(answer: Answer) -> Response:
    headers = {"content-type": (answer.content_type or JSON.encode()).decode("latin-1")}
    if answer.retry_after:
        headers["retry-after"] = answer.retry_after.decode("latin-1")
    return Response(answer.body, answer.status, headers)


def _failed(path: str, error: TriptychError) -> bytes:
    """The event that ends a stream in which an error happened."""
    if path == MESSAGES_PATH:
        return b"event: error\n" + sse(msgspec.json.encode(error_of(error)))
    return error_event(error)


def relayed() -> APIRouter:
    """The relayed routes as the documentation shows them. The edge answers them before they could
    come here, unless their path is spelled in another way."""
    routes = APIRouter()

    @routes.post(CHAT_PATH)
    async def chat(request: Request) -> Response:
        """OpenAI chat completions, media of every kind included.

        `X-Request-Timeout`: seconds that the request may take. `X-Request-Id` and `Authorization`
        go to the workers too.
        """
        raise NoRoute(f"the path must be spelled {CHAT_PATH}")

    @routes.post(COMPLETIONS_PATH)
    async def completions(request: Request) -> Response:
        """OpenAI text completions."""
        raise NoRoute(f"the path must be spelled {COMPLETIONS_PATH}")

    return routes
