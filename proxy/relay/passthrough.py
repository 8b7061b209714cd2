"""Routes of a proxy that relays: what a worker says, passed on."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import AsyncGenerator, Collection
from types import MappingProxyType

import msgspec
from fastapi import APIRouter, Request, Response

from protocol.anthropic import MESSAGES_PATH
from protocol.errors import InvalidRequest, RequestAborted, TriptychError
from protocol.openai import CHAT_PATH, COMPLETIONS_PATH
from protocol.pooling import POOLING_PATHS, PoolingParams, check_task
from proxy.fleet.worker import Instance
from proxy.gateway import Gateway
from proxy.relay.forwarder import Forwarder
from proxy.relay.lacking import HolderLacksRoute, NoRoute
from proxy.relay.passed_request import PassedRequest, PassedRequests
from proxy.relay.passed_routes import PASSED, STORED, PassedRoute
from proxy.relay.stored_responses import StoredResponses
from proxy.upstream.answer import Answer
from proxy.upstream.failures import Refused
from services.frontend.anthropic.answer import message_error
from services.http.bodies import counted
from services.http.callers import deadline_of
from services.http.openai import JSON
from services.http.responses import no_response
from services.http.streams import Deadline, EventStream, error_event, sse, while_connected

_RESPONSE_ID = re.compile(r"[\w-]{1,128}", re.ASCII)
# What goes on where no body came.
_NOTHING = MappingProxyType({"GET": b"", "DELETE": b"", "POST": b"{}"})
_LOOKED_AT = 32  # workers that one request is sent to at most


class Passing:
    """Answers the routes of one proxy that are passed on."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._metrics = gateway.metrics
        self._forwarder = Forwarder(gateway)
        self._requests = PassedRequests(gateway)
        self._keyed = gateway.config.asks_for_api_keys
        self._stored = StoredResponses()

    async def answer(self, route: PassedRoute, request: Request) -> Response:
        """The worker's answer, whole or as a stream whose first events are there already."""
        deadline = deadline_of(request.headers, self._gateway.config.request_timeout)
        async with self._gateway.bodies.read(request) as body:
            passed = await self._requests.read(route, request, body, deadline)
            if passed.previous:
                self._check_alone("previous_response_id")
                passed.only = self._having(passed.previous, passed.caller.tenant)
            try:
                return await self._answer(request, passed, deadline)
            except Refused as refused:
                return self._refused(refused)
            except NoRoute:
                self._check_pools(route)
                raise

    def _check_pools(self, route: PassedRoute) -> None:
        """`InvalidRequest` for vectors and scores where the model that is served here has none."""
        if route.path in POOLING_PATHS and self._gateway.frontend is not None:
            check_task(PoolingParams(), self._gateway.frontend.info.pooler)

    async def answer_stored(self, route: PassedRoute, request: Request) -> Response:
        """What the worker that has a stored response says. One that this proxy does not remember
        is looked for at a few workers, one after the other."""
        self._check_alone()
        name: str = request.path_params["response_id"]
        if _RESPONSE_ID.fullmatch(name) is None:
            raise no_response(name)
        deadline = deadline_of(request.headers, self._gateway.config.request_timeout)
        async with self._gateway.bodies.read(request) as body:
            sent = body or _NOTHING[route.method]
            passed = await self._requests.read(route, request, sent, deadline)
            passed.path = _with_query(route.path.format(response_id=name), request)
            known = self._having(name, passed.caller.tenant)
            # A worker that is only guessed is asked once: if it fails, the next one is looked at.
            passed.once = known is None
            workers = self._asked(passed.model) if known is None else [known]
            try:
                found = await self._first_that_has(workers, request, passed, deadline)
            except Refused as refused:
                return self._refused(refused)
        if found is None:
            raise no_response(name)
        if route.method == "DELETE":
            self._stored.forget(name)
        return found

    async def _first_that_has(
        self, workers: list[Instance], request: Request, passed: PassedRequest, deadline: Deadline
    ) -> Response | None:
        """A response, None if no worker has it. Raises the first failure if it may be at a worker
        that has failed, `HolderLacksRoute` if none has the route."""
        failure: TriptychError | None = None
        looked = False
        for worker in workers:
            passed.only = worker
            try:
                return await self._answer(request, passed, deadline)
            # The client is gone: no further worker need be asked.
            except RequestAborted:
                raise
            except TriptychError as error:
                if isinstance(error, Refused) and error.answer.status == 404:
                    looked = True
                elif failure is None or isinstance(failure, NoRoute):
                    failure = error
        if isinstance(failure, NoRoute):
            if looked:
                return None
            raise HolderLacksRoute(f"workers here do not have {passed.route.name}")
        if failure is not None:
            raise failure
        return None

    def _check_alone(self, param: str | None = None) -> None:
        """Each process remembers its own responses: `InvalidRequest` if there are several."""
        if self._gateway.config.workers > 1:
            message = "stored responses need a proxy of one process (--workers 1)"
            if param is not None:
                message = f"{param}: {message}"
            raise InvalidRequest(message, param=param, code="several_processes")

    def _having(self, name: str, tenant: str) -> Instance | None:
        """The worker that has a response, None if it is not known; `NoResponse` if it is another
        client's, or could be."""
        worker = self._stored.worker_of(name, tenant)
        if worker is None and (self._keyed or self._stored.known(name)):
            raise no_response(name)  # workers do not tell the clients of this proxy apart
        return worker

    def _asked(self, model: str) -> list[Instance]:
        """The workers at which a response is looked for."""
        fleet = self._gateway.fleet
        named = model or None
        return [*fleet.usable("decode", (), named), *fleet.usable("prefill", (), named)][
            :_LOOKED_AT
        ]

    async def _answer(
        self, request: Request, passed: PassedRequest, deadline: Deadline
    ) -> Response:
        """Raises `Refused` with what a worker has said."""
        route, answers = passed.route, self._forwarder.run(passed)
        first = await while_connected(request, anext(answers), deadline)
        if passed.stored and first.status == 200 and passed.worker is not None:
            tenant = passed.caller.tenant
            self._stored.note(first.body, passed.worker, tenant, streamed=first.is_stream)
        if first.is_stream and first.status == 200:
            failed = functools.partial(_failed, route.path)
            events = self._events(first, answers, route.path)
            headers = {"content-type": first.content_type.decode("latin-1")}
            return EventStream(events, headers, deadline, failed)
        async for _ in answers:  # to its end, where the call ends
            pass
        return _whole(first)

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
        return _whole(refused.told())


def passing(gateway: Gateway, taken: Collection[str] = ()) -> APIRouter:
    """The routes of `PASSED` but those `taken`, which the proxy answers by itself."""
    routes, work = APIRouter(), Passing(gateway)

    def add(route: PassedRoute) -> None:
        answer = work.answer_stored if route in STORED else work.answer

        @counted(gateway.in_flight.counted)
        async def passed(request: Request) -> Response:
            return await answer(route, request)

        does = f"{route.does} Answered by a worker that has the route."
        routes.add_api_route(route.path, passed, methods=[route.method], description=does)

    for route in (*PASSED, *STORED):
        if route.path not in taken:
            add(route)
    return routes


def _with_query(path: str, request: Request) -> str:
    query = request.url.query
    return f"{path}?{query}" if query and query.isascii() and query.isprintable() else path


def _whole(answer: Answer) -> Response:
    headers = {"content-type": (answer.content_type or JSON.encode()).decode("latin-1")}
    if answer.retry_after:
        headers["retry-after"] = answer.retry_after.decode("latin-1")
    return Response(answer.body, answer.status, headers)


def _failed(path: str, error: TriptychError) -> bytes:
    """The event that ends a stream in which an error happened."""
    if path == MESSAGES_PATH:
        return b"event: error\n" + sse(msgspec.json.encode(message_error(error)))
    return error_event(error)


def relayed() -> APIRouter:
    """The relayed routes as the documentation shows them. The relay's server answers requests
    for them before they could come here, unless their path is spelled in another way."""
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
