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

    input: str | list[Json]  # text or items: messages, calls, results, reasoning
    model: str | None = None  # name that is served
    instructions: str | None = None  # system message before all others
    previous_response_id: str | None = None  # stored response that this one goes on from
    store: bool | None = None  # whether the response is kept
    stream: bool | None = None  # answer by server-sent events
    max_output_tokens: Positive | None = None  # output tokens at most, reasoning included
    temperature: Temperature | None = None  # 0 for greedy
    top_p: TopP | None = None  # probability mass to draw from
    tools: list[Json] | None = None  # functions that the model may call
    tool_choice: str | Json | None = None  # whether it must call one, and which
    parallel_tool_calls: bool | None = None  # false: one call at most
    text: TextOptions | None = None  # format and verbosity of the answer
    reasoning: Reasoning | None = None  # effort of thinking
    # only disabled: too long a prompt is refused
    truncation: Literal["auto", "disabled"] | None = None
    include: list[str] | None = None  # more to be told
    metadata: dict[str, str] | None = None  # repeated in the response
    user: str | None = None  # repeated in the response
    # Further parameters, as in chats.
    top_k: TopK | None = None  # likeliest tokens to draw from, 0 or -1 for all
    min_p: MinP | None = None  # least probability, as a share of the likeliest token's
    seed: Int64 | None = None  # of the draws
    # factor on logits of tokens in prompt or output
    repetition_penalty: RepetitionPenalty | None = None
    presence_penalty: Penalty | None = None  # off the logit of a token that the output has
    frequency_penalty: Penalty | None = None  # the same, for each time that it has it
    logit_bias: dict[str, float] | None = None  # added to the logit, by token id
    stop: str | list[str] | None = None  # strings that end an output
    stop_token_ids: list[Int64] | None = None  # tokens that end an output
    ignore_eos: bool | None = None  # go on behind the end token
    skip_special_tokens: bool | None = None  # leave special tokens out of the text
    include_stop_str_in_output: bool | None = None  # keep the stop string in the text
    structured_outputs: Any = None  # what the output is held to
    mm_processor_kwargs: Json | None = None  # options of the media processor, such as max_pixels
    priority: Int64 = 0  # lower runs earlier
    cache_salt: str | None = None  # prefixes are shared only among requests with the same one
    request_id: str | None = None  # the response's id begins with it, after resp_
    session_id: str | None = None  # as the header X-Session-Id
    include_reasoning: bool | None = None  # false leaves reasoning out
    chat_template: str | None = None  # instead of the model's
    chat_template_kwargs: Json | None = None  # variables of the chat template
    ec_transfer_params: Json | None = None  # handles of embeddings, by media hash


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
