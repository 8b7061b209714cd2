"""The OpenAI routes, the same before a proxy's pipeline and before a worker's own engine."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from fastapi import APIRouter, Request, Response

from protocol.generate import encode_generate
from protocol.openai import (
    BATCH_PATH,
    CHAT_PATH,
    COMPLETIONS_PATH,
    ChatCompletionRequest,
    decode_chat,
    decode_chat_batch,
    decode_completion,
)
from protocol.openai_answers import Answer, encode
from services.frontend.answers.answering import Answering, Steps
from services.frontend.answers.whole import merge, merge_chats
from services.frontend.models import Models
from services.frontend.spec import RenderedRequest
from services.http.bodies import Admitted, Bodies, counted
from services.http.callers import caller_of, deadline_of, with_caller
from services.http.long_texts import LongTexts
from services.http.prompt_streams import prompt_events
from services.http.records import drawn_id, record_of
from services.http.streams import Deadline, EventStream, while_connected
from services.http.tasks import all_of

JSON = "application/json"
_PROMPTS_AT_ONCE = 8  # of one request: a long list must not fill all workers
_T = TypeVar("_T")


@dataclass(frozen=True)
class Service:
    """What answers requests to `models`. `run` computes a rendered request; `stop_choice` is told
    when a stop string has ended one of its choices; `admitted` counts a request in while it is
    here, from its headers to its answer's end, or raises. `bodies` bounds what is taken in.
    `timeout_s`: the longest that a request may take. `texts`: the long ones of requests that only
    ask about them.
    """

    models: Models
    run: Callable[[RenderedRequest], Steps]
    stop_choice: Callable[[RenderedRequest, int], None]
    admitted: Admitted
    bodies: Bodies
    timeout_s: float | None = None
    texts: LongTexts = field(default_factory=LongTexts)

    async def rendered_chat(
        self, request: Request, decode: Callable[[bytes], ChatCompletionRequest] = decode_chat
    ) -> RenderedRequest:
        """A chat request, read, checked and rendered; `RequestAborted` if the client has left.
        `decode`: the chat in the request's body."""
        deadline = deadline_of(request.headers, self.timeout_s)
        async with self.body(request, deadline) as body:
            wanted = await self.bodies.decoded(body, decode)
            name = request_id(request, wanted.request_id)
            render = self.models.of(wanted.model).render_chat(
                wanted, request_id=name, caller=caller_of(request), size=len(body)
            )
            with record_of(request.scope).during("render"):
                rendered = await while_connected(request, render, deadline)
        return with_caller(rendered, request, deadline)

    async def rendered_batch(self, request: Request) -> list[RenderedRequest]:
        """The chats of a batch."""
        deadline = deadline_of(request.headers, self.timeout_s)
        async with self.body(request, deadline) as body:
            wanted = await self.bodies.decoded(body, decode_chat_batch)
            caller = caller_of(request)
            frontend = self.models.of(wanted[0].model)
            name = request_id(request, wanted[0].request_id)
            with record_of(request.scope).during("render"):
                chats = [
                    await while_connected(
                        request,
                        frontend.render_chat(
                            chat, request_id=f"{name}-{i}", caller=caller, size=len(body)
                        ),
                        deadline,
                    )
                    for i, chat in enumerate(wanted)
                ]
        return [with_caller(chat, request, deadline) for chat in chats]

    async def rendered_completion(self, request: Request) -> list[RenderedRequest]:
        deadline = deadline_of(request.headers, self.timeout_s)
        async with self.body(request, deadline) as body:
            wanted = await self.bodies.decoded(body, decode_completion)
            name = request_id(request, wanted.request_id)
            render = self.models.of(wanted.model).render_completion(wanted, request_id=name)
            with record_of(request.scope).during("render"):
                prompts = await while_connected(request, render, deadline)
        return [with_caller(prompt, request, deadline) for prompt in prompts]

    @contextlib.asynccontextmanager
    async def body(self, request: Request, deadline: Deadline) -> AsyncGenerator[bytes, None]:
        """The request's body, counted until it has been rendered."""
        async with contextlib.AsyncExitStack() as stack:
            try:
                # Over the reading alone: what is done with the body has a time limit of its own.
                async with asyncio.timeout(deadline.left_s):
                    body = await stack.enter_async_context(self.bodies.read(request))
            except TimeoutError:
                raise deadline.exceeded() from None
            yield body

    async def answer(self, request: Request, rendered: RenderedRequest) -> Response:
        """The whole answer, or a stream whose first tokens are there already."""
        deadline = Deadline.after(rendered.generate.deadline_s)
        if not rendered.output.stream:
            whole = await while_connected(request, self._whole(rendered), deadline)
            return Response(encode(whole), media_type=JSON)
        steps = self.run(rendered)
        # Before the head is sent: a request that is refused still has a status of its own.
        first = await while_connected(request, anext(steps), deadline)
        return EventStream(self.answering(rendered).events(first, steps), deadline=deadline)

    async def answer_all(self, request: Request, prompts: list[RenderedRequest]) -> Response:
        """One answer to several prompts, which share one deadline."""
        deadline = Deadline.after(prompts[0].generate.deadline_s)
        if prompts[0].output.stream:
            return await self._stream_all(request, prompts, deadline)
        answers = await while_connected(request, self._wholes(prompts, deadline), deadline)
        return Response(encode(merge(answers)), media_type=JSON)

    async def answer_batch(self, request: Request, chats: list[RenderedRequest]) -> Response:
        """One answer to several chats, which share one deadline."""
        deadline = Deadline.after(chats[0].generate.deadline_s)
        answers = await while_connected(request, self._wholes(chats, deadline), deadline)
        return Response(encode(merge_chats(answers)), media_type=JSON)

    async def _stream_all(
        self, request: Request, prompts: list[RenderedRequest], deadline: Deadline
    ) -> Response:
        def begin(prompt: RenderedRequest) -> Steps:
            # What is left once its turn has come: the prompts share one deadline.
            return self.run(replace(prompt, generate=deadline.bounding(prompt.generate)))

        answers = [(self.answering(p), functools.partial(begin, p)) for p in prompts]
        events = prompt_events(answers, _PROMPTS_AT_ONCE)
        first = await while_connected(request, anext(events), deadline)
        return EventStream(_after(first, events), deadline=deadline)

    async def _wholes(self, prompts: list[RenderedRequest], deadline: Deadline) -> list[Answer]:
        return await at_once(prompts, self._whole, deadline, _PROMPTS_AT_ONCE)

    async def _whole(self, rendered: RenderedRequest) -> Answer:
        return await self.answering(rendered).whole(self.run(rendered))

    def answering(self, rendered: RenderedRequest) -> Answering:
        """What makes an answer of a request's outputs."""
        return Answering(
            rendered.output,
            self.models.known(rendered.model).tokenizer,
            stop_choice=lambda index: self.stop_choice(rendered, index),
        )


async def at_once(
    prompts: Sequence[RenderedRequest],
    work: Callable[[RenderedRequest], Awaitable[_T]],
    deadline: Deadline,
    most: int,
) -> list[_T]:
    """What `work` makes of each prompt, `most` at a time; the first failure ends them all."""
    room = asyncio.Semaphore(most)

    async def one(prompt: RenderedRequest) -> _T:
        async with room:
            return await work(replace(prompt, generate=deadline.bounding(prompt.generate)))

    return await all_of(one(prompt) for prompt in prompts)


def generating(service: Service) -> APIRouter:
    """Chat and text completions."""
    routes = APIRouter()

    @routes.post(CHAT_PATH)
    @counted(service.admitted)
    async def chat(request: Request) -> Response:
        """OpenAI chat completions, pictures included.

        `X-Request-Timeout`: seconds that the request may take. `X-Session-Id`: the conversation it
        belongs to.
        """
        return await service.answer(request, await service.rendered_chat(request))

    @routes.post(CHAT_PATH + "/render")
    @counted(service.admitted)
    async def render_chat(request: Request) -> Response:
        """A chat as workers are asked for it, which is not computed: the body of
        `/inference/v1/generate`."""
        return Response(_as_sent(await service.rendered_chat(request)), media_type=JSON)

    @routes.post(BATCH_PATH)
    @counted(service.admitted)
    async def batch(request: Request) -> Response:
        """Several chats at once, without streams and tools: `messages` is a list of conversations,
        and the answer has a choice for each."""
        return await service.answer_batch(request, await service.rendered_batch(request))

    @routes.post(COMPLETIONS_PATH)
    @counted(service.admitted)
    async def completions(request: Request) -> Response:
        """OpenAI text completions."""
        prompts = await service.rendered_completion(request)
        if len(prompts) == 1:
            return await service.answer(request, prompts[0])
        return await service.answer_all(request, prompts)

    @routes.post(COMPLETIONS_PATH + "/render")
    @counted(service.admitted)
    async def render_completion(request: Request) -> Response:
        """As `/v1/chat/completions/render`, of a text completion: a list with a body for each of
        its prompts."""
        prompts = await service.rendered_completion(request)
        return Response(b"[%b]" % b",".join(map(_as_sent, prompts)), media_type=JSON)

    return routes


def _as_sent(rendered: RenderedRequest) -> bytes:
    """As a worker is asked for it."""
    return encode_generate(rendered.generate, stream=rendered.output.stream)


async def _after(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with contextlib.aclosing(rest):
        yield first
        async for data in rest:
            yield data


def request_id(request: Request, named: str | None = None) -> str:
    """Unique even if clients repeat theirs, which is the header's, or else the body's, `named`."""
    given = request.headers.get("x-request-id") or named
    name = drawn_id(request.scope)
    return f"{given[:128]}-{name[:8]}" if given else name
