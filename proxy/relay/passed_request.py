"""A request for a route that is passed on: read from the client, with what goes on to a worker."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from fastapi import Request

from protocol.bounds import MAX_CHOICES
from protocol.responses import RESPONSES_PATH
from proxy.fleet.worker import Instance
from proxy.gateway import Gateway
from proxy.placement.planner import Need, Plan
from proxy.relay.bodies import RequestBody
from proxy.relay.media import MediaItem
from proxy.relay.model_list import OwnNames
from proxy.relay.passed_media import media_passed
from proxy.relay.passed_routes import PassedRoute
from proxy.relay.request import for_worker, named_id
from proxy.relay.stored_responses import is_stored, previous_of
from proxy.request_state import Caller, RequestState
from services.http.browsers import is_form, not_form
from services.http.callers import MAX_SESSION, SESSION_HEADER, caller_of
from services.http.openai import JSON
from services.http.streams import Deadline

# Of a form: the field's value up to the next boundary, which follows in a line of its own.
_MODEL_FIELD = re.compile(rb'name="model"\r\n(?:[^\r\n]+\r\n)*\r\n([^\r\n]{1,256})\r\n--')


@dataclass(kw_only=True)
class PassedRequest(RequestState):
    """A request over all its attempts."""

    route: PassedRoute  # the row of the table that it came by
    body: bytes  # as it goes on
    headers: dict[str, str]  # for the worker
    model: str = ""  # that the client names
    stream: bool = False  # whether the client asks for one
    started: bool = False  # whether the client has had any of the answer
    path: str = ""  # the worker's own, with the query, where it is not the route's
    only: Instance | None = None  # the worker that must answer; None: any that has the route
    once: bool = False  # it is not tried again
    previous: str = ""  # the stored response that it goes on from
    stored: bool = False  # whether its response is kept for later ones
    worker: Instance | None = None  # the one that was asked last
    read: RequestBody | None = None  # of a JSON body
    items: Sequence[MediaItem] = ()  # media in it that an encoder could encode
    need: Need | None = None  # as a master is told of it, but for the attempt's id
    names: Sequence[str] = ()  # of each item, for planners; none unless there is a `need`
    plan: Plan | None = None  # of the attempt under way
    placed_as: str = ""  # id of that attempt at the planner

    @property
    def target(self) -> str:
        return self.path or self.route.asked_as or self.route.path

    @property
    def begun(self) -> bool:
        return self.started


class PassedRequests:
    """Reads them, as one proxy's flags say."""

    def __init__(self, gateway: Gateway) -> None:
        self._names = OwnNames(gateway.fleet, gateway.config.served_names)
        self._bodies = gateway.bodies
        self._keyed = gateway.config.asks_for_api_keys
        self._has_key = bool(gateway.config.authorization)
        self._min_priority = gateway.config.min_priority
        self._references = gateway.config.allow_media_references
        self._most_media = gateway.config.limit_mm_per_prompt

    async def read(
        self, route: PassedRoute, request: Request, body: bytes, deadline: Deadline
    ) -> PassedRequest:
        """`InvalidRequest` or `UnsupportedMedia` for a body that is none of its route's."""
        headers = for_worker(request, keyed=self._keyed)
        caller = Caller(
            caller_of(request).tenant, request.headers.get(SESSION_HEADER, "")[:MAX_SESSION]
        )
        passed = PassedRequest(
            deadline=deadline.at,
            request_id=headers["x-request-id"],
            caller=caller,
            own_key=not self._keyed and ("authorization" in headers or not self._has_key),
            route=route,
            body=body,
            headers=headers,
        )
        if route.form:
            self._read_form(passed, request)
        elif route.method == "POST":
            await self._read_json(passed, named="x-request-id" in request.headers)
        else:
            passed.model = request.query_params.get("model", "")
        return passed

    def _encodable(self, path: str, read: RequestBody) -> list[MediaItem]:
        """Its media; none of a request that has too many, which its worker refuses."""
        chats = media_passed(path, read.fields)
        if len(chats) > MAX_CHOICES or any(len(items) > self._most_media for items in chats):
            return []
        return [item for items in chats for item in items]

    @staticmethod
    def _read_form(passed: PassedRequest, request: Request) -> None:
        given = request.headers.get("content-type", "")
        if not is_form(given.encode("latin-1")):
            raise not_form(given)
        passed.headers["content-type"] = given
        if (named := _MODEL_FIELD.search(passed.body)) is not None:
            passed.model = named[1].decode(errors="replace")

    async def _read_json(self, passed: PassedRequest, *, named: bool) -> None:
        """`named`: whether the request has its name from a header."""
        parse = partial(RequestBody.parse, references=self._references)
        read = await self._bodies.decoded(passed.body, parse)
        if not named:
            name = named_id(read.fields.get("request_id"), passed.request_id.encode())
            passed.headers["x-request-id"] = name.decode()
        self._names.rename(read)
        passed.headers["content-type"] = JSON
        if passed.route.path == RESPONSES_PATH:
            passed.previous, passed.stored = previous_of(read.fields), is_stored(read.fields)
        passed.priority = read.priority(self._min_priority)
        passed.body = b"".join(read.bare)
        passed.read, passed.items = read, self._encodable(passed.route.path, read)
        passed.model, passed.stream = read.model, read.stream
