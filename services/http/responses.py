"""OpenAI's Responses API, before a proxy's pipeline and before a worker's own engine."""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from protocol.errors import InvalidRequest, TriptychError
from protocol.openai import ChatCompletionRequest
from protocol.responses import RESPONSES_PATH, ResponsesRequest, decode_responses
from services.frontend.responses.answer import ResponseAnswer
from services.frontend.responses.chats import as_of_response, chat_of_response, items_of
from services.http.bodies import counted
from services.http.callers import caller_of
from services.http.openai import JSON, Service
from services.http.response_store import ResponseStore, Stored
from services.http.streams import Deadline, EventStream, while_connected

Json = dict[str, Any]
_NOT_OF_IDS = re.compile(r"[^\w-]", re.ASCII)  # an id stands in the path of the stored response
_MAX_ID = 80  # characters of the client's own name that are kept


class NoResponse(TriptychError):
    """A response that is not stored, or not any more, or another client's."""

    status = 404
    code = "response_not_found"
    type = "invalid_request_error"


def no_response(response_id: str, *, keeps: bool = True) -> NoResponse:
    """`keeps`: whether responses are stored here at all."""
    why = "" if keeps else ": this server stores none, so send all items as input"
    return NoResponse(f"there is no response '{response_id[:64]}' here{why}")


class Responses:
    """Of one server. `store`: what later requests may go on from."""

    def __init__(self, service: Service, store: ResponseStore) -> None:
        self._service = service
        self._store = store

    async def create(self, request: Request) -> Response:
        """The whole response, or a stream whose first tokens are there already."""
        work = _Work(self, caller_of(request).tenant)
        try:
            rendered = await self._service.rendered_chat(request, work.decode)
        except InvalidRequest as error:
            raise as_of_response(error) from None
        answer = work.answer(rendered.output.model)
        deadline = Deadline.after(rendered.generate.deadline_s)
        answering = self._service.answering(rendered)
        steps = self._service.run(rendered)
        if not rendered.output.stream:
            whole = await while_connected(request, answer.whole(answering, steps), deadline)
            work.keep(whole)
            return Response(msgspec.json.encode(whole), media_type=JSON)
        first = await while_connected(request, anext(steps), deadline)
        events = work.kept(answer, answer.events(answering, first, steps))
        return EventStream(events, deadline=deadline, failed=answer.failed)

    def stored(self, request: Request, response_id: str) -> Stored:
        """`NoResponse` if there is none."""
        return self.find(response_id, caller_of(request).tenant)

    def find(self, response_id: str, tenant: str) -> Stored:
        stored = self._store.get(response_id, tenant)
        if stored is None:
            raise no_response(response_id, keeps=self.keeps)
        return stored

    def forget(self, request: Request, response_id: str) -> None:
        if not self._store.delete(response_id, caller_of(request).tenant):
            raise no_response(response_id, keeps=self.keeps)

    @property
    def keeps(self) -> bool:
        """Whether responses are stored here."""
        return self._store.keeps

    def keep(self, whole: Json, given: list[Json], before: list[Json], tenant: str) -> None:
        self._store.put(whole, given, before, tenant)


class _Work:
    """One request on its way."""

    def __init__(self, responses: Responses, tenant: str) -> None:
        self._responses = responses
        self._tenant = tenant
        self._before: list[Json] = []
        self._request = ResponsesRequest(input="")

    def decode(self, body: bytes) -> ChatCompletionRequest:
        """The chat that the request stands for."""
        self._request = decode_responses(body)
        if not self._responses.keeps:
            # Clients ask for it unless they say otherwise: as of vLLM, the answer tells them.
            self._request.store = False
        if (previous := self._request.previous_response_id) is not None:
            stored = self._responses.find(previous, self._tenant)
            self._before = msgspec.json.decode(stored.items, type=list[Json])
        return chat_of_response(self._request, self._before)

    def answer(self, model: str) -> ResponseAnswer:
        named = self._request.request_id
        begun = f"resp_{_NOT_OF_IDS.sub('_', named[:_MAX_ID])}-" if named else "resp_"
        return ResponseAnswer(self._request, begun + uuid.uuid4().hex, model)

    def keep(self, whole: Json) -> None:
        """Store the response unless the client does not want that."""
        if self._request.store is not False:
            self._responses.keep(whole, items_of(self._request), self._before, self._tenant)

    async def kept(
        self, answer: ResponseAnswer, events: AsyncGenerator[bytes, None]
    ) -> AsyncGenerator[bytes, None]:
        """`events`; what they told of is stored before the last one is sent."""
        async with contextlib.aclosing(events):
            async for data in events:
                # Before the last event: a client may refer to the response as soon as it has read
                # that.
                if answer.response["status"] in ("completed", "incomplete"):
                    self.keep(answer.response)
                yield data


def responding(service: Service, max_bytes: int) -> APIRouter:
    """The Responses API; `max_bytes` of responses are kept."""
    routes = APIRouter()
    responses = Responses(service, ResponseStore(max_bytes))

    @routes.post(RESPONSES_PATH)
    @counted(service.admitted)
    async def create(request: Request) -> Response:
        """OpenAI responses, stateless or after an earlier one that was stored."""
        return await responses.create(request)

    @routes.get(RESPONSES_PATH + "/{response_id}")
    async def show(request: Request, response_id: str) -> Response:
        """A response that was stored."""
        return Response(responses.stored(request, response_id).response, media_type=JSON)

    @routes.get(RESPONSES_PATH + "/{response_id}/input_items")
    async def show_input(request: Request, response_id: str) -> Response:
        """The input items of a response that was stored."""
        data = msgspec.Raw(responses.stored(request, response_id).input)
        listed = {"object": "list", "data": data, "has_more": False}
        return Response(msgspec.json.encode(listed), media_type=JSON)

    @routes.post(RESPONSES_PATH + "/{response_id}/cancel")
    async def cancel(request: Request, response_id: str) -> Response:
        """Refused, as by OpenAI: only what is made in the background can be cancelled so."""
        responses.stored(request, response_id)
        raise InvalidRequest(
            "a response that is not made in the background cannot be cancelled: close the"
            " connection instead",
            param="response_id",
        )

    @routes.delete(RESPONSES_PATH + "/{response_id}")
    async def delete(request: Request, response_id: str) -> Response:
        """Forget a response."""
        responses.forget(request, response_id)
        told = {"id": response_id, "object": "response", "deleted": True}
        return Response(msgspec.json.encode(told), media_type=JSON)

    return routes
