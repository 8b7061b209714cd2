"""Answers of OpenAI's Responses API as types: what /openapi.json says of them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Json = dict[str, Any]
Status = Literal["in_progress", "completed", "incomplete", "failed"]


class OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    text: str
    annotations: list[Json]
    logprobs: list[Json]


class ReasoningText(msgspec.Struct, tag_field="type", tag="reasoning_text"):
    text: str


class MessageItem(msgspec.Struct, tag_field="type", tag="message"):
    id: str
    status: Status
    role: Literal["assistant"]
    content: list[OutputText]


class ReasoningItem(msgspec.Struct, tag_field="type", tag="reasoning"):
    id: str
    status: Status
    summary: list[Json]
    content: list[ReasoningText]


class CallItem(msgspec.Struct, tag_field="type", tag="function_call"):
    """`arguments` is JSON as the model wrote it."""

    id: str
    status: Status
    call_id: str
    name: str
    arguments: str


class CachedTokens(msgspec.Struct):
    cached_tokens: int


class ReasoningTokens(msgspec.Struct):
    reasoning_tokens: int


class ResponseUsage(msgspec.Struct):
    """Tokens of prompt and output."""

    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class IncompleteDetails(msgspec.Struct):
    reason: str


class ResponseError(msgspec.Struct):
    code: str
    message: str


class ResponseAnswer(msgspec.Struct, kw_only=True):
    """A response: what the model said, then what the request asked for."""

    id: str  # by which later requests go on from it
    object: Literal["response"]  # always "response"
    created_at: int  # seconds since 1970
    status: Status  # whether it goes on, or how it ended
    model: str  # as the client named it
    output: list[MessageItem | ReasoningItem | CallItem]  # items, in order
    error: ResponseError | None  # why it has failed
    incomplete_details: IncompleteDetails | None  # why it ends early
    usage: ResponseUsage | None  # None until it ends
    instructions: str | None  # system message, as the client gave it
    max_output_tokens: int | None  # as the client gave it
    metadata: dict[str, str]  # as the client gave it
    parallel_tool_calls: bool  # whether there may be several calls
    previous_response_id: str | None  # response that it goes on from
    reasoning: Json  # effort, as the client gave it
    store: bool  # whether it is kept here
    temperature: float | None  # that tokens were drawn at
    text: Json  # format and verbosity, as the client gave them
    tool_choice: str | Json  # as the client gave it
    tools: list[Json]  # as the client gave them
    top_p: float | None  # that tokens were drawn with
    truncation: Literal["auto", "disabled"]  # always "disabled"
    user: str | None  # as the client gave it


class ResponseEvent(msgspec.Struct):
    """An event of a stream; its other members follow from `type`."""

    type: str
    sequence_number: int


class InputItems(msgspec.Struct):
    data: list[Json]
    has_more: bool
    object: Literal["list"] = "list"


class DeletedResponse(msgspec.Struct):
    id: str
    deleted: bool = True
    object: Literal["response"] = "response"
