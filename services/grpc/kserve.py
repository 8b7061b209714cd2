"""KServe's inference service, version 2, before a proxy's pipeline."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

import grpc

from protocol.errors import InvalidRequest, ModelNotFound, TriptychError
from services.frontend.answers.output import Gain
from services.frontend.spec import RenderedRequest
from services.grpc.callers import caller_of_call, with_call
from services.grpc.intake import Intake
from services.grpc.kserve_answers import config_of, end_of, model_metadata, piece_of, response_of
from services.grpc.kserve_requests import Form, Inference, read
from services.grpc.proto import kserve_pb2 as pb
from services.grpc.server import (
    Check,
    Context,
    Unary,
    empty_handler,
    message_handler,
    methods,
    refuse,
    told,
    within,
)
from services.http.openai import Service, at_once
from services.http.streams import Deadline
from services.http.version import version

SERVICE = "inference.GRPCInferenceService"
_PROMPTS_AT_ONCE = 8  # of one request
_NAMES_AT_ONCE = 4


class KServe:
    """`able`: as of `Behind`. `check`: why a caller may not ask, None if it may."""

    def __init__(self, service: Service, able: Callable[[str], bool], check: Check) -> None:
        self._service = service
        self._models = service.models
        self._intake = Intake(service.bodies)
        self._able = able
        self._check = check

    def handler(self) -> Any:
        """For a gRPC server."""
        # Places of its own: calls without a key must not take those of requests.
        named = Intake(self._service.bodies, _NAMES_AT_ONCE)  # needs no key

        def about(work: Unary, response: Any) -> Any:
            return message_handler(work, named, pb.ModelName, response)

        handlers = {
            "ServerLive": empty_handler(self.live, pb.Live),
            "ServerReady": empty_handler(self.ready, pb.Ready),
            "ModelReady": about(self.model_ready, pb.Ready),
            "ServerMetadata": empty_handler(self.server_metadata, pb.ServerMetadata),
            "ModelMetadata": about(self.metadata, pb.ModelMetadata),
            "ModelConfig": about(self.config, pb.ModelConfigResponse),
            "ModelInfer": empty_handler(self.infer, pb.InferResponse),
            # `Intake` reads its messages as there is room, not the library's iterator.
            "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(
                self.stream_infer, None, pb.StreamInferResponse.SerializeToString
            ),
        }
        return methods(SERVICE, handlers)

    async def live(self, context: Context) -> pb.Live:
        return pb.Live(live=True)

    async def ready(self, context: Context) -> pb.Ready:
        return pb.Ready(ready=self._able(""))

    async def model_ready(self, request: pb.ModelName, context: Context) -> pb.Ready:
        models = self._models
        known = request.name in models.names
        return pb.Ready(ready=known and self._able(models.of(request.name).name))

    async def server_metadata(self, context: Context) -> pb.ServerMetadata:
        return pb.ServerMetadata(name="triptych", version=version(), extensions=[])

    async def metadata(self, request: pb.ModelName, context: Context) -> pb.ModelMetadata:
        self._served(request.name)
        return model_metadata(request.name)

    async def config(self, request: pb.ModelName, context: Context) -> pb.ModelConfigResponse:
        self._served(request.name)
        return pb.ModelConfigResponse(config=config_of(request.name))

    def _served(self, name: str) -> None:
        if name not in self._models.names:
            raise ModelNotFound(f"name: '{name[:256]}' is not served here", param="name")

    async def infer(self, context: Context) -> pb.InferResponse:
        """The whole answer."""
        self._admit(context)
        with self._service.admitted():
            async with self._intake.message(context, pb.InferRequest) as message:
                if message is None:
                    raise InvalidRequest("the call has no message")
                asked = await self._asked(message, context, streams=False)
            # The name would keep the message, its pictures too, until the answer has ended.
            del message
            async with within(asked.deadline):
                answers = await at_once(
                    asked.prompts, self._whole, asked.deadline, _PROMPTS_AT_ONCE
                )
        choices = [choice for answer in answers for choice in answer]
        return response_of(asked.form, [c[0] for c in choices], [c[1] for c in choices])

    async def stream_infer(
        self, messages: Any, context: Context
    ) -> AsyncGenerator[pb.StreamInferResponse, None]:
        """The answers to requests one after the other; one that fails does not end the stream. A
        stream that sends no further request in time ends well."""
        going_on, later = True, False
        while going_on:
            request = _Named(later=later)
            try:
                self._admit(context)
                async with contextlib.aclosing(self._streamed(context, request)) as pieces:
                    async for piece in pieces:
                        yield pb.StreamInferResponse(infer_response=piece)
            except TriptychError as error:
                if not request.received:
                    await refuse(context, error)
                yield pb.StreamInferResponse(
                    error_message=told(error), infer_response=pb.InferResponse(id=request.id)
                )
            going_on = later = request.received

    async def _streamed(
        self, context: Context, request: _Named
    ) -> AsyncGenerator[pb.InferResponse, None]:
        """The answer to the stream's next request, of which `request` is told."""
        with contextlib.ExitStack() as counted:
            intake = self._intake.message(context, pb.InferRequest, later=request.later)
            async with intake as message:
                if message is None:
                    return
                # From here on an error answers the request; before, it ends the whole stream.
                request.received, request.id = True, message.id
                counted.enter_context(self._service.admitted())
                asked = await self._asked(message, context, streams=True)
            del message
            async with within(asked.deadline):
                if not asked.form.stream:
                    choices = await self._whole(asked.prompts[0])
                    yield response_of(asked.form, [c[0] for c in choices], [c[1] for c in choices])
                    return
                gains = self._gains(asked.prompts[0])
                left = asked.prompts[0].output.n
                async with contextlib.aclosing(gains) as steps:
                    async for gain in steps:
                        # The last piece is marked: the stream's connection stays open for further
                        # requests.
                        left -= gain.finish_reason is not None
                        if gain.text or gain.finish_reason is not None:
                            final = not left and not asked.form.empty_end
                            yield piece_of(asked.form, gain, final=final)
                if asked.form.empty_end:
                    yield end_of(asked.form)

    async def _asked(self, message: pb.InferRequest, context: Context, *, streams: bool) -> _Asked:
        """What a message asks for, rendered."""
        wanted = read(message, self._models.names)
        if wanted.form.stream and not streams:
            raise InvalidRequest(
                "streaming: ModelInfer answers once; use ModelStreamInfer", param="streaming"
            )
        deadline = self._deadline(wanted.form, context)
        async with within(deadline):
            prompts = await self._rendered(wanted, context, deadline)
        if streams and len(prompts) != 1:
            raise InvalidRequest("text_input: a stream takes one text", param="text_input")
        return _Asked(wanted.form, prompts, deadline)

    def _admit(self, context: Context) -> None:
        error = self._check(context)
        if error is not None:
            raise error

    def _deadline(self, wanted: Form, context: Context) -> Deadline:
        """The earliest of what the call, the request and the server allow."""
        given = (context.time_remaining(), wanted.timeout_s, self._service.timeout_s)
        times = [seconds for seconds in given if seconds is not None]
        return Deadline.after(min(times) if times else None)

    async def _rendered(
        self, wanted: Inference, context: Context, deadline: Deadline
    ) -> list[RenderedRequest]:
        name = f"kserve-{uuid.uuid4().hex}"
        frontend, images = self._models.of(wanted.form.model), wanted.images
        caller = caller_of_call(context)
        if images:
            prompts = [
                await frontend.render_raw(wanted.request, images, request_id=name, caller=caller)
            ]
        else:
            prompts = await frontend.render_completion(wanted.request, request_id=name)
        return [with_call(prompt, context, deadline) for prompt in prompts]

    async def _gains(self, prompt: RenderedRequest) -> AsyncGenerator[Gain, None]:
        answering = self._service.answering(prompt)
        async with contextlib.aclosing(answering.gains(self._service.run(prompt))) as steps:
            async for gains in steps:
                for gain in gains:
                    yield gain

    async def _whole(self, prompt: RenderedRequest) -> list[tuple[str, str]]:
        """Text and finish reason of each choice."""
        shown = prompt.output.prompt_text or "" if prompt.output.echo else ""
        found = [[shown, ""] for _ in range(prompt.output.n)]
        async with contextlib.aclosing(self._gains(prompt)) as gains:
            async for gain in gains:
                found[gain.index][0] += gain.text
                # A choice that has ended at a stop string may gain more, which says nothing.
                if gain.finish_reason is not None:
                    found[gain.index][1] = gain.finish_reason
        return [(text, finish) for text, finish in found]


@dataclass(frozen=True)
class _Asked:
    """A request without its message."""

    form: Form
    prompts: list[RenderedRequest]
    deadline: Deadline


@dataclass
class _Named:
    """A request of a stream. `received`: whether its message has come. `later`: there was one
    before."""

    id: str = ""
    received: bool = False
    later: bool = False
