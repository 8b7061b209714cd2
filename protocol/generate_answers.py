"""From an engine's outputs to the answer of `/inference/v1/generate`, counted."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from protocol.bounds import Natural
from protocol.errors import ErrorInfo, InvalidRequest
from protocol.types import (
    EncodeOutput,
    FinishReason,
    GenerateRequest,
    PositionLogprobs,
    RequestOutput,
)

_LONGEST_STOP = 1 << 16  # characters of a stop string


class LogprobsBody(msgspec.Struct):
    content: list[PositionLogprobs]


class ChoiceBody(msgspec.Struct, omit_defaults=True):
    index: int  # number of the choice, from 0
    token_ids: list[int]  # output tokens
    finish_reason: FinishReason | None = None  # None while it goes on
    # stop string or token id that ended it
    stop_reason: Natural | Annotated[str, Meta(max_length=_LONGEST_STOP)] | None = None
    logprobs: LogprobsBody | None = None  # of its tokens, where they were asked for
    pooled: bytes = b""  # as base64


class UsageBody(msgspec.Struct):
    prompt_tokens: Natural
    completion_tokens: Natural
    cached_tokens: Natural = 0


class GenerateAnswer(msgspec.Struct, omit_defaults=True):
    """A whole answer, or one event of a streamed one."""

    request_id: str  # as in the request, or the worker's own
    choices: list[ChoiceBody]  # of a stream: what is new
    usage: UsageBody | None = None  # tokens of the request
    kv_transfer_params: dict[str, Any] | None = None  # handle by which a decode worker gets the KV
    ec_transfer_params: dict[str, Any] | None = None  # handles of embeddings
    error: ErrorInfo | None = None  # why the request has failed; nothing follows
    # of the prompt's tokens but the first, if asked for; with the first tokens
    prompt_logprobs: list[PositionLogprobs] | None = None


class EncodeAnswer(msgspec.Struct):
    outputs: list[EncodeOutput]


def answer_of(outputs: list[RequestOutput], usage: UsageBody | None = None) -> GenerateAnswer:
    """One event of a stream from one or more outputs of the same request."""
    kv = next((out.kv_transfer_params for out in outputs if out.kv_transfer_params), None)
    error = next((out.error for out in outputs if out.error), None)
    choices = [
        ChoiceBody(
            out.index,
            out.token_ids,
            out.finish_reason,
            out.stop_reason,
            LogprobsBody(out.logprobs) if out.logprobs is not None else None,
            out.pooled,
        )
        for out in outputs
    ]
    return GenerateAnswer(
        outputs[0].request_id, choices, usage, kv, error=error, prompt_logprobs=_scores(outputs)
    )


def _scores(outputs: list[RequestOutput]) -> list[PositionLogprobs] | None:
    return next((o.prompt_logprobs for o in outputs if o.prompt_logprobs is not None), None)


class TokenCounts:
    """Token counts of one request."""

    def __init__(self, request: GenerateRequest) -> None:
        self._request_id = request.request_id
        self.prompt = len(request.token_ids)
        self.completion = sum(len(tokens) for tokens in request.emitted.values())
        self.cached = 0

    def count(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            self.completion += len(output.token_ids)
            self.cached = max(self.cached, output.cached_tokens or 0)

    def step(self, outputs: list[RequestOutput]) -> GenerateAnswer:
        """One event of a stream, counted. It has the usage so far if it tells what was cached. A
        step that puts nothing out has one too: the client sees that the request goes on."""
        if not outputs:
            return GenerateAnswer(self._request_id, [])
        self.count(outputs)
        tells = any(output.cached_tokens is not None for output in outputs)
        return answer_of(outputs, self.body() if tells else None)

    def body(self) -> UsageBody:
        return UsageBody(self.prompt, self.completion, self.cached)


def whole_answer(request: GenerateRequest, outputs: list[RequestOutput]) -> GenerateAnswer:
    """All outputs of a request as one answer, choices in order."""
    usage = TokenCounts(request)
    usage.count(outputs)
    choices: dict[int, ChoiceBody] = {}
    for output in outputs:
        choice = choices.setdefault(output.index, ChoiceBody(output.index, []))
        choice.token_ids += output.token_ids
        choice.finish_reason = output.finish_reason or choice.finish_reason
        choice.stop_reason = output.stop_reason
        choice.pooled = output.pooled or choice.pooled
        if output.logprobs:
            choice.logprobs = choice.logprobs or LogprobsBody([])
            choice.logprobs.content += output.logprobs
    kv = next((o.kv_transfer_params for o in outputs if o.kv_transfer_params), None)
    ordered = [choices[index] for index in sorted(choices)]
    return GenerateAnswer(
        request.request_id, ordered, usage.body(), kv, prompt_logprobs=_scores(outputs)
    )


def check_spans(request: GenerateRequest) -> None:
    """`InvalidRequest` unless the placeholder spans lie apart, in order, inside the prompt."""
    done = 0
    for item in request.mm_items:
        if item.length < 1 or item.offset < done or item.end > len(request.token_ids):
            raise InvalidRequest(
                f"placeholder span {item.offset}+{item.length} overlaps another or leaves "
                "the prompt",
                param="features",
            )
        if item.length % (len(item.gaps) + 1):
            raise InvalidRequest(
                f"placeholder span {item.offset}+{item.length} has no {len(item.gaps) + 1} runs of"
                " one length",
                param="features",
            )
        done = item.end
