"""OpenAI's Responses API: its requests as types, with the extensions vLLM's clients use."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from protocol.bounds import Int64, MinP, Positive, RepetitionPenalty, Temperature, TopK, TopP
from protocol.decoding import accepted

RESPONSES_PATH = "/v1/responses"
Json = dict[str, Any]


class Reasoning(msgspec.Struct):
    """How much to think; what is told of it is all of it, so `summary` changes nothing."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class TextOptions(msgspec.Struct):
    format: Json | None = None
    verbosity: str | None = None


class ResponsesRequest(msgspec.Struct, kw_only=True):
    """None means that the client left a field out."""

    input: str | list[Json]
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: Json | None = None
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
    # They name or mark a request and change nothing in its answer.
    metadata: dict[str, str] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None
    # Further sampling parameters, as in chats.
    top_k: TopK | None = None
    min_p: MinP | None = None
    seed: Int64 | None = None
    repetition_penalty: RepetitionPenalty | None = None
    stop: str | list[str] | None = None
    priority: Int64 = 0
    cache_salt: str | None = None
    chat_template_kwargs: Json | None = None
    # They change the answer and are not served: anything but the default is refused.
    background: Any = None
    conversation: Any = None
    prompt: Any = None
    max_tool_calls: Any = None
    top_logprobs: Any = None


_RESPONSES = msgspec.json.Decoder(ResponsesRequest)


def decode_responses(data: bytes) -> ResponsesRequest:
    """The request in a JSON body; `InvalidRequest` names the field at fault."""
    return accepted(_RESPONSES.decode, data)
