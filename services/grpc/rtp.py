"""RTP-LLM's model service: token ids in, token ids out, as its frontends ask its engines."""

from __future__ import annotations

import contextlib
import time
import uuid
from array import array
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

import grpc
import msgspec

from protocol.errors import InvalidRequest, TriptychError
from protocol.openai import CompletionRequest, decode_completion
from protocol.rtp_config import config_fields
from services.frontend.answers.output import Gain
from services.frontend.answers.rtp import code_of
from services.frontend.spec import RenderedRequest
from services.grpc.callers import caller_of_call, with_call
from services.grpc.intake import Intake
from services.grpc.proto import rtp_pb2 as pb
from services.grpc.server import Check, Context, empty_handler, methods, refuse, told, within
from services.http.openai import Service
from services.http.streams import Deadline

SERVICE = "RpcService"
_MOST_TOKENS = 1 << 20  # more could not be made into JSON that is taken (`protocol.json_size`)
_DETAILS = "grpc-status-details-bin"


class RtpModel:
    """`able`: as of `Behind`. `check`: why a caller may not ask, None if it may."""

    def __init__(self, service: Service, able: Callable[[str], bool], check: Check) -> None:
        self._service = service
        self._frontend = service.models.first  # calls name no model
        self._intake = Intake(service.bodies)
        self._able = able
        self._check = check

    def handler(self) -> Any:
        """For a gRPC server. Methods that RTP-LLM's engines have among themselves are not here."""
        handlers = {
            "GenerateStreamCall": grpc.stream_stream_rpc_method_handler(
                self.generate, None, pb.GenerateOutputs.SerializeToString
            ),
            "CheckHealth": empty_handler(self.health, pb.Health),
        }
        return methods(SERVICE, handlers)

    async def health(self, context: Context) -> pb.Health:
        return pb.Health(
            health="ok" if self._able(self._frontend.name) else "no requests are taken here"
        )

    async def generate(
        self, messages: Any, context: Context
    ) -> AsyncGenerator[pb.GenerateOutputs, None]:
        """The new tokens of each step, or all of them at once unless `is_streaming`."""
        try:
            if (refusal := self._check(context)) is not None:
                raise refusal
            with self._service.admitted():
                async with contextlib.aclosing(self._answers(context)) as answers:
                    async for answer in answers:
                        yield answer
        except TriptychError as error:
            # RTP-LLM's clients read its own code from the status' details.
            details = pb.ErrorDetails(error_code=code_of(error), error_message=told(error))
            trailing = ((_DETAILS, details.SerializeToString()),)
            await refuse(context, error, trailing)

    async def _answers(self, context: Context) -> AsyncGenerator[pb.GenerateOutputs, None]:
        asked = await self._asked(context)
        answer = _Answer(
            asked.request_id, asked.prompt, min(self._frontend.info.eos_token_ids, default=0)
        )
        answering = self._service.answering(asked.prompt)
        gained = answering.gains(self._service.run(asked.prompt))
        # What answers may go on, and a client may stop reading.
        async with within(asked.deadline), contextlib.aclosing(gained) as steps:
            async for gains in steps:
                for gain in gains:
                    answer.add(gain)
                details = answering.usage().prompt_tokens_details
                reused = 0 if details is None else details.cached_tokens
                if asked.is_streaming or answer.finished:
                    yield answer.taken(reused)

    async def _asked(self, context: Context) -> _Asked:
        """What the call's message asks for, rendered; the message itself is let go of."""
        async with self._intake.message(context, pb.GenerateInput) as message:
            if message is None:
                raise InvalidRequest("the call has no message")
            deadline = self._deadline(message, context)
            async with within(deadline):
                prompt = await self._rendered(message, context, deadline)
            streams = message.generate_config.is_streaming
            return _Asked(message.request_id, streams, prompt, deadline)

    def _deadline(self, message: pb.GenerateInput, context: Context) -> Deadline:
        timeout_ms = message.generate_config.timeout_ms
        given = (
            context.time_remaining(),
            timeout_ms / 1e3 if timeout_ms > 0 else None,
            self._service.timeout_s,
        )
        times = [seconds for seconds in given if seconds is not None]
        return Deadline.after(min(times) if times else None)

    async def _rendered(
        self, message: pb.GenerateInput, context: Context, deadline: Deadline
    ) -> RenderedRequest:
        urls = [one.multimodal_url for one in message.multimodal_inputs]
        # Unique even if two clients give their calls the same number.
        name = f"rtp-{message.request_id}-{uuid.uuid4().hex[:8]}"
        prompt = await self._frontend.render_raw(
            request_of(message), urls, request_id=name, caller=caller_of_call(context)
        )
        return with_call(prompt, context, deadline)


def request_of(message: pb.GenerateInput) -> CompletionRequest:
    """The request as ours; `InvalidRequest` names the field at fault."""
    if not message.token_ids:
        raise InvalidRequest("token_ids must not be empty", param="token_ids")
    if len(message.token_ids) > _MOST_TOKENS:
        raise InvalidRequest(
            f"token_ids must not have more than {_MOST_TOKENS} tokens", param="token_ids"
        )
    fields = config_fields(_config_of(message.generate_config), "generate_config")
    body = {**fields, "prompt": list(message.token_ids)}
    return decode_completion(msgspec.json.encode(body))


def _config_of(config: pb.GenerateConfig) -> dict[str, Any]:
    """The message as RTP-LLM's JSON. What is 0 asks for nothing, but for the temperature."""
    found: dict[str, Any] = {}
    for field, value in config.ListFields():
        if field.message_type is None:
            found[field.name] = list(value) if field.is_repeated else value
        elif field.name == "stop_words_list":
            found[field.name] = [list(row.values) for row in value.rows]
        else:
            found[field.name] = value.value
    # proto3 sends no zeros: a temperature of 0 looks as if it were left out.
    for name in ("temperature", "do_sample"):
        found.setdefault(name, getattr(config, name))
    # The deadline has it already.
    found.pop("timeout_ms", None)
    return found


@dataclass(frozen=True)
class _Asked:
    """A request without its message."""

    request_id: int
    is_streaming: bool
    prompt: RenderedRequest
    deadline: Deadline


class _Answer:
    """What the choices of one request have gained since it was last told."""

    def __init__(self, request_id: int, prompt: RenderedRequest, pad: int) -> None:
        self._request_id = request_id
        self._pad = pad
        self._input = len(prompt.generate.token_ids)
        self._new: list[list[int]] = [[] for _ in range(prompt.output.n)]
        self._finished = [False] * prompt.output.n
        self._lengths = [0] * prompt.output.n
        self._steps = 0
        self._begun, self._first = time.monotonic(), 0.0

    @property
    def finished(self) -> bool:
        return all(self._finished)

    def add(self, gain: Gain) -> None:
        self._first = self._first or time.monotonic()
        self._new[gain.index] += gain.token_ids
        self._lengths[gain.index] += len(gain.token_ids)
        self._finished[gain.index] |= gain.finish_reason is not None

    def taken(self, reused: int) -> pb.GenerateOutputs:
        """The new tokens [choices, 1, longest], shorter ones padded with the end token."""
        self._steps += 1
        longest = max(map(len, self._new))
        flat = array("i")
        for ids in self._new:
            # A tensor has one length; clients drop end tokens.
            flat.extend([*ids, *[self._pad] * (longest - len(ids))])
        shape = [len(self._new), 1, longest]
        tensor = pb.Tensor(
            data_type=pb.Tensor.INT32, shape=shape, int32_data=flat.tobytes() if longest else b""
        )
        output = pb.FlattenOutput(
            finished=self._finished,
            aux_info=[self._info(index, reused) for index in range(len(self._new))],
            output_ids=tensor if longest else None,
        )
        self._new = [[] for _ in self._new]
        return pb.GenerateOutputs(request_id=self._request_id, flatten_output=output)

    def _info(self, index: int, reused: int) -> pb.AuxInfo:
        return pb.AuxInfo(
            cost_time_us=round(1e6 * (time.monotonic() - self._begun)),
            first_token_cost_time_us=round(1e6 * (self._first - self._begun)),
            iter_count=self._steps,
            input_len=self._input,
            output_len=self._lengths[index],
            step_output_len=len(self._new[index]),
            total_reuse_len=reused,
        )
