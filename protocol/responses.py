"""OpenAI's Responses API: its requests as types, with the extensions vLLM's clients use."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from protocol.agent_fields import RESPONSES
from protocol.bounds import (
    Int64,
    MinP,
    Penalty,
    Positive,
    RepetitionPenalty,
    Temperature,
    TopK,
    TopP,
)
from protocol.decoding import accepted
from protocol.request_fields import RequestParser
from protocol.responses_members import EFFORT, TEXT

RESPONSES_PATH = "/v1/responses"
Json = dict[str, Any]


class Reasoning(msgspec.Struct):
    """How much to think."""

    effort: str | None = None


class TextOptions(msgspec.Struct):
    format: Json | None = None
    verbosity: str | None = None


class ResponsesRequest(msgspec.Struct, kw_only=True):
    """Each field has its row in `protocol.agent_fields`; None means that the client left it out."""

    input: str | list[Json]
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    max_output_tokens: Positive | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    tools: list[Json] | None = None
    tool_choice: str | Json | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    truncation: Literal["auto", "disabled"] | None = None
    include: list[str] | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    # Further parameters, as in chats.
    top_k: TopK | None = None
    min_p: MinP | None = None
    seed: Int64 | None = None
    repetition_penalty: RepetitionPenalty | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[str, float] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Int64] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    structured_outputs: Any = None
    mm_processor_kwargs: Json | None = None
    priority: Int64 = 0
    cache_salt: str | None = None
    request_id: str | None = None
    session_id: str | None = None
    include_reasoning: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: Json | None = None
    ec_transfer_params: Json | None = None


_RESPONSES = RequestParser.of(
    ResponsesRequest, RESPONSES, "responses", reasoning=Json | None, text=Json | None
)
RESPONSES_BODY = _RESPONSES.described(reasoning=Reasoning | None, text=TextOptions | None)
"""The body as /openapi.json describes it."""


def decode_responses(data: bytes) -> ResponsesRequest:
    """The request in a JSON body; `InvalidRequest` names the field at fault."""
    return accepted(_read, _RESPONSES.parsed(data))


def _read(request: ResponsesRequest) -> ResponsesRequest:
    """The request with its objects as structs, which are dicts as the parser decodes them."""
    for name, members, struct in (("reasoning", EFFORT, Reasoning), ("text", TEXT, TextOptions)):
        if isinstance(given := getattr(request, name), dict):
            setattr(request, name, members.converted(given, struct, name))
    return request
