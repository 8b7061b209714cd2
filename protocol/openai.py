"""OpenAI's chat and completion requests as types, with the extensions vLLM's clients use.

Decoding checks types and ranges and names the field at fault; what depends on the model is the
frontend's business. No field is ignored in silence: `protocol.request_table` says what becomes of
each, and one that it does not list is refused, as OpenAI does. null is as good as leaving a field
out. Answers are in `protocol.openai_answers`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from protocol.bounds import (
    MAX_CHOICES,
    Alternatives,
    Choices,
    Int64,
    LengthPenalty,
    MinP,
    NamedTokens,
    Natural,
    Penalty,
    Positive,
    RepetitionPenalty,
    Temperature,
    TopK,
    TopP,
    Truncation,
)
from protocol.chat_messages import ChatMessage, read_message
from protocol.decoding import accepted, check_opaque
from protocol.errors import InvalidRequest
from protocol.nvext import NVEXT, fields_of_nvext, member_of
from protocol.request_fields import RequestParser
from protocol.request_table import FIELDS
from protocol.rtp_config import config_fields, name_in

CHAT_PATH = "/v1/chat/completions"
BATCH_PATH = CHAT_PATH + "/batch"
COMPLETIONS_PATH = "/v1/completions"
ServiceTier = Literal["auto", "default", "flex", "scale", "priority", "fast"]


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """`include_obfuscation` is accepted and has no effect."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class SharedFields(msgspec.Struct, kw_only=True):
    """What chat and completion requests have in common. Each field has its row in
    `protocol.request_table`; None means that the client left it out."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Natural | None = None
    n: Choices | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    seed: Int64 | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Int64] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: RepetitionPenalty | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[Int64] | None = None
    logprob_token_ids: NamedTokens | None = None
    bad_words: list[str] | None = None
    use_beam_search: bool = False
    length_penalty: LengthPenalty | None = None
    early_stopping: bool | Literal["never"] | None = None
    ignore_eos: bool = False
    min_tokens: Natural = 0
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: Truncation | None = None
    truncation_side: Literal["left", "right"] | None = None
    priority: Int64 = 0
    cache_salt: str | None = None
    request_id: str | None = None
    session_id: str | None = None
    service_tier: ServiceTier | None = None
    prompt_logprobs: Alternatives | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    response_format: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    nvext: dict[str, Any] | None = None


class ChatCompletionRequest(SharedFields, kw_only=True):
    messages: list[ChatMessage]
    max_completion_tokens: Positive | None = None
    logprobs: bool | None = None
    top_logprobs: Alternatives | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    documents: list[dict[str, Any]] | None = None
    reasoning_effort: str | None = None
    include_reasoning: bool = True
    verbosity: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: str | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    media_io_kwargs: dict[str, Any] | None = None
    extra_configs: dict[str, Any] | None = None
    template_key: str | None = None
    user_template: str | None = None
    enable_thinking: bool | None = None
    chat_id: str | None = None


class CompletionRequest(SharedFields, kw_only=True):
    """`prompt`: a text, a list of texts, token ids, or a list of lists of token ids."""

    prompt: str | list[str | Int64 | list[Int64]]
    logprobs: Alternatives | None = None
    echo: bool | None = None
    best_of: Choices | None = None


_R = TypeVar("_R", bound=SharedFields)


class _Batch(msgspec.Struct):
    messages: Annotated[list[msgspec.Raw], Meta(min_length=1, max_length=MAX_CHOICES)]
    stream: bool | None = None
    tools: list[Any] | None = None
    n: int | None = None


_CHAT = RequestParser.of(ChatCompletionRequest, FIELDS, "chat", messages=list[dict[str, Any]])
_COMPLETION = RequestParser.of(CompletionRequest, FIELDS, "completions")


CHAT_BODY = _CHAT.described(messages=list[ChatMessage])
BATCH_BODY = _CHAT.described("ChatBatchRequest", messages=list[list[ChatMessage]])
COMPLETION_BODY = _COMPLETION.described()
"""Bodies of the routes as /openapi.json describes them."""


def decode_chat(data: bytes) -> ChatCompletionRequest:
    """The request in a JSON body; `InvalidRequest` names the field at fault."""
    request = _checked(_CHAT.parsed(data))
    if request.extra_configs or request.nvext:
        request = _checked(_extended(_CHAT, data, request.extra_configs, request.nvext))
    request.messages = accepted(_messages, request.messages)
    return request


def _messages(given: Any) -> list[ChatMessage]:
    """As the parser leaves them, which decodes them as dicts."""
    return [read_message(message, f"messages[{i}]") for i, message in enumerate(given)]


def decode_chat_batch(data: bytes) -> list[ChatCompletionRequest]:
    """The chats of a batch: `messages` has the conversations, the other fields are all of theirs
    and decoded once: the chats share them. `InvalidRequest` names the field at fault."""
    fields = accepted(msgspec.json.Decoder(dict[str, msgspec.Raw]).decode, data)
    body = accepted(msgspec.json.Decoder(_Batch).decode, data)
    if body.stream or body.tools or (body.n or 1) > 1:
        name = "stream" if body.stream else "tools" if body.tools else "n"
        raise InvalidRequest(
            f"{name}: a batch is answered whole, without tools and with one choice of each chat",
            param=name,
            code="unsupported_parameter",
        )
    first = _chat_of_batch({**fields, "messages": body.messages[0]}, 0)
    others = (
        _chat_of_batch({"messages": messages}, number)
        for number, messages in enumerate(body.messages[1:], 1)
    )
    return [first, *(msgspec.structs.replace(first, messages=one.messages) for one in others)]


def _chat_of_batch(fields: dict[str, msgspec.Raw], number: int) -> ChatCompletionRequest:
    try:
        return decode_chat(msgspec.json.encode(fields))
    except InvalidRequest as error:
        if error.param is not None and error.param.startswith("messages"):
            error.param = f"messages[{number}]{error.param.removeprefix('messages')}"
        raise


def decode_completion(data: bytes) -> CompletionRequest:
    """The request in a JSON body; `InvalidRequest` names the field at fault."""
    request = _checked(_COMPLETION.parsed(data))
    return _checked(_extended(_COMPLETION, data, None, request.nvext)) if request.nvext else request


def _extended(
    parser: RequestParser[_R],
    data: bytes,
    config: dict[str, Any] | None,
    nvext: dict[str, Any] | None,
) -> _R:
    """The request with what RTP-LLM's `extra_configs` and Dynamo's `nvext` ask for beside its own
    fields, which go before them."""
    body = msgspec.json.decode(data, type=dict[str, Any])
    own = {name: value for name, value in body.items() if value is not None}
    theirs = config_fields(config or {}, "extra_configs")
    fields = {**fields_of_nvext(nvext or {}), **theirs}
    if "chat_id" in own:  # a session id would go before it
        fields.pop("session_id", None)
    try:
        return parser.parsed(msgspec.json.encode({**fields, **own}))
    except InvalidRequest as error:
        if error.param in own or error.param not in fields:
            raise
        if error.param in theirs:
            error.param = f"extra_configs.{name_in(config or {}, error.param) or error.param}"
        else:
            error.param = f"{NVEXT}.{member_of(error.param)}"
        raise


def _checked(request: _R) -> _R:
    check_opaque(request.kv_transfer_params, "kv_transfer_params")
    check_opaque(request.ec_transfer_params, "ec_transfer_params")
    if request.stream_options is not None and not request.stream:
        raise InvalidRequest("stream_options needs stream: true", param="stream_options")
    return request
