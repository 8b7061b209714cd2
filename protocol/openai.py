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
from protocol.decoding import ANY_OBJECT, accepted, check_opaque
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

    model: str | None = None  # name that is served
    stream: bool | None = None  # answer by server-sent events
    stream_options: StreamOptions | None = None  # whether a stream tells usage
    max_tokens: Natural | None = None  # output tokens at most
    n: Choices | None = None  # number of choices
    temperature: Temperature | None = None  # 0 for greedy
    top_p: TopP | None = None  # probability mass to draw from
    top_k: TopK | None = None  # likeliest tokens to draw from, 0 or -1 for all
    min_p: MinP | None = None  # least probability, as a share of the likeliest token's
    seed: Int64 | None = None  # of the draws
    stop: str | list[str] | None = None  # strings that end an output
    stop_token_ids: list[Int64] | None = None  # tokens that end an output
    presence_penalty: Penalty | None = None  # off the logit of a token that the output has
    frequency_penalty: Penalty | None = None  # the same, for each time that it has it
    # factor on logits of tokens in prompt or output
    repetition_penalty: RepetitionPenalty | None = None
    logit_bias: dict[str, float] | None = None  # added to the logit, by token id
    allowed_token_ids: list[Int64] | None = None  # the only tokens of outputs
    logprob_token_ids: NamedTokens | None = None  # tokens whose log-probabilities are told
    bad_words: list[str] | None = None  # texts that outputs do not have
    use_beam_search: bool = False  # search with n beams
    length_penalty: LengthPenalty | None = None  # exponent of the length that ranks beams
    early_stopping: bool | Literal["never"] | None = None  # when a beam search ends
    ignore_eos: bool = False  # go on behind the end token
    min_tokens: Natural = 0  # output tokens at least
    skip_special_tokens: bool = True  # leave special tokens out of the text
    include_stop_str_in_output: bool = False  # keep the stop string in the text
    add_special_tokens: bool | None = None  # whether the tokenizer adds its own to the prompt
    # tokens of the prompt to keep, -1: all that fit
    truncate_prompt_tokens: Truncation | None = None
    truncation_side: Literal["left", "right"] | None = None  # end that is cut off
    priority: Int64 = 0  # lower runs earlier
    cache_salt: str | None = None  # prefixes are shared only among requests with the same one
    request_id: str | None = None  # as the header X-Request-Id
    session_id: str | None = None  # as the header X-Session-Id
    service_tier: ServiceTier | None = None  # any; the answer says default
    prompt_logprobs: Alternatives | None = None  # alternatives told at each prompt token
    return_token_ids: bool | None = None  # tell token ids beside texts
    return_tokens_as_token_ids: bool | None = None  # name tokens token_id:ID in log-probabilities
    kv_transfer_params: dict[str, Any] | None = None  # handle of KV that another worker holds
    ec_transfer_params: dict[str, Any] | None = None  # handles of embeddings, by media hash
    response_format: Any = None  # text, JSON or a JSON schema
    structured_outputs: Any = None  # vLLM's form of the same, and more
    guided_json: Any = None  # JSON schema, by vLLM's older name
    guided_regex: Any = None  # regular expression, likewise
    guided_choice: Any = None  # texts to choose from, likewise
    guided_grammar: Any = None  # grammar in EBNF, likewise
    nvext: dict[str, Any] | None = None  # Dynamo's extensions


class ChatCompletionRequest(SharedFields, kw_only=True):
    messages: list[ChatMessage]  # the conversation
    max_completion_tokens: Positive | None = None  # as max_tokens, before which it goes
    logprobs: bool | None = None  # tell log-probabilities of the answer's tokens
    top_logprobs: Alternatives | None = None  # alternatives told at each token
    tools: list[dict[str, Any]] | None = None  # functions that the model may call
    tool_choice: str | dict[str, Any] | None = None  # whether it must call one, and which
    parallel_tool_calls: bool | None = None  # false: one call at most
    documents: list[dict[str, Any]] | None = None  # handed to the chat template
    reasoning_effort: str | None = None  # handed to the chat template
    include_reasoning: bool = True  # false leaves reasoning out
    verbosity: str | None = None  # handed to the chat template
    chat_template_kwargs: dict[str, Any] | None = None  # variables of the chat template
    add_generation_prompt: bool = True  # end the prompt with the head of an answer
    continue_final_message: bool = False  # go on with the last message
    chat_template: str | None = None  # instead of the model's
    mm_processor_kwargs: dict[str, Any] | None = None  # options of the media processor
    media_io_kwargs: dict[str, Any] | None = None  # which frames of a clip are taken
    extra_configs: dict[str, Any] | None = None  # RTP-LLM's generate_config
    template_key: str | None = None  # name of one of the model's templates
    user_template: str | None = None  # as chat_template, for RTP-LLM's clients
    enable_thinking: bool | None = None  # handed to the chat template
    chat_id: str | None = None  # as session_id, which goes before it


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
    body = ANY_OBJECT.decode(data)
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
