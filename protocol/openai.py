"""OpenAI's chat and completion requests as types, with the extensions vLLM's clients use.

Decoding checks types and ranges and names the field at fault; what depends on the model is the
frontend's business. Fields that are not listed are ignored, as OpenAI and vLLM do. Answers are in
`protocol.openai_answers`.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from protocol.bounds import (
    Alternatives,
    Bias,
    Choices,
    Int64,
    MinP,
    Natural,
    Penalty,
    Positive,
    RepetitionPenalty,
    Temperature,
    TopK,
    TopP,
    check_opaque,
)
from protocol.decoding import accepted

CHAT_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"


class MediaURL(msgspec.Struct):
    """`detail` is accepted and has no effect: the model's processor decides the resolution."""

    url: str
    detail: str | None = None


class ContentPart(msgspec.Struct):
    """One part of a message. Which of the fields must be there follows from `type`.

    `image_url` null with a `uuid` refers to a picture sent before under that name. `image_embeds`
    holds the metadata of a picture whose embeddings `uuid` (its mm_hash) names.
    """

    type: str
    text: str | None = None
    image_url: MediaURL | str | UnsetType | None = UNSET
    image_embeds: Any = UNSET
    video_url: Any = UNSET
    audio_url: Any = UNSET
    input_audio: Any = UNSET
    refusal: str | None = None
    uuid: str | None = None


class FunctionCall(msgspec.Struct):
    """`arguments` is JSON text; an object is accepted too."""

    name: str
    arguments: str | dict[str, Any] = ""


class ToolCall(msgspec.Struct):
    function: FunctionCall
    id: str | None = None
    type: str = "function"


class ChatMessage(msgspec.Struct):
    role: str
    content: str | list[str | ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    thinking: str | None = None


class StreamOptions(msgspec.Struct):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class SharedFields(msgspec.Struct, kw_only=True):
    """What chat and completion requests have in common; None means that the client left it out."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Positive | None = None
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
    logit_bias: dict[str, Bias] | None = None
    ignore_eos: bool = False
    min_tokens: Natural = 0
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    add_special_tokens: bool | None = None
    priority: Int64 = 0
    cache_salt: str | None = None
    user: str | None = None
    request_id: str | None = None
    return_token_ids: bool | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    response_format: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    # They change the answer and no worker honours them: anything but the default is refused.
    prompt_logprobs: Any = None
    use_beam_search: Any = None
    truncate_prompt_tokens: Any = None
    bad_words: Any = None
    allowed_token_ids: Any = None
    mm_processor_kwargs: Any = None


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
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: Any = None
    modalities: Any = None
    functions: Any = None


class CompletionRequest(SharedFields, kw_only=True):
    """`prompt`: a text, a list of texts, token ids, or a list of lists of token ids."""

    prompt: str | list[str | Int64 | list[Int64]]
    logprobs: Alternatives | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: Choices | None = None


_R = TypeVar("_R", bound=SharedFields)
_CHAT = msgspec.json.Decoder(ChatCompletionRequest)
_COMPLETION = msgspec.json.Decoder(CompletionRequest)


def decode_chat(data: bytes) -> ChatCompletionRequest:
    """The request in a JSON body; `InvalidRequest` names the field at fault."""
    return _checked(accepted(_CHAT.decode, data))


def decode_completion(data: bytes) -> CompletionRequest:
    """The request in a JSON body; `InvalidRequest` names the field at fault."""
    return _checked(accepted(_COMPLETION.decode, data))


def _checked(request: _R) -> _R:
    check_opaque(request.kv_transfer_params, "kv_transfer_params")
    check_opaque(request.ec_transfer_params, "ec_transfer_params")
    return request
