"""OpenAI's chat and completion answers as types, whole and as chunks of a stream.

A field that is UNSET is left out; None is sent as null where clients expect the key.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from protocol.types import FinishReason

ChatFinish = FinishReason | Literal["tool_calls"]
OWNER = "triptych"
DONE = b"data: [DONE]\n\n"


class PromptTokensDetails(msgspec.Struct):
    """`audio_tokens`: of the prompt, those that stand for audio; left out where there is none."""

    cached_tokens: int
    audio_tokens: int | UnsetType = UNSET


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None


class TokenChance(msgspec.Struct):
    """`bytes` are the token's own UTF-8 bytes, which may be part of a character."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TokenChance]


class ChatLogprobs(msgspec.Struct):
    content: list[ChatLogprob]


class TextLogprobs(msgspec.Struct):
    """Of completions: parallel lists; `text_offset` counts characters of the answer. A prompt's
    first token has no log-probability."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptChance(msgspec.Struct):
    """vLLM's form of a token that may stand at a place of the prompt."""

    logprob: float
    rank: int
    decoded_token: str


# By token id as text; None for the prompt's first token.
PromptLogprobs = list[dict[str, PromptChance] | None]


class CalledFunction(msgspec.Struct):
    """`arguments` is JSON as the model wrote it, which may be none."""

    name: str
    arguments: str


class CalledTool(msgspec.Struct):
    """A call that the model wants made."""

    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class FunctionDelta(msgspec.Struct):
    """`arguments` is a piece of JSON text, which may be empty."""

    arguments: str
    name: str | UnsetType = UNSET


class CalledToolDelta(msgspec.Struct):
    """A piece of a call. Calls of a choice are numbered from 0; the first piece of each has id,
    type and name."""

    index: int
    function: FunctionDelta
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class Message(msgspec.Struct, kw_only=True):
    role: Literal["assistant"] = "assistant"  # always "assistant"
    content: str | None  # text, None where there are only calls
    refusal: str | None = None  # always None
    tool_calls: list[CalledTool] | UnsetType = UNSET  # functions that are called
    reasoning: str | UnsetType = UNSET  # what the model thought
    reasoning_content: str | UnsetType = UNSET  # the same, by another name


class Delta(msgspec.Struct):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    tool_calls: list[CalledToolDelta] | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET


class ChatChoice(msgspec.Struct, kw_only=True):
    index: int  # number of the choice, from 0
    message: Message  # the whole answer
    logprobs: ChatLogprobs | None = None  # of its tokens, where they were asked for
    finish_reason: ChatFinish | None  # why it ended
    stop_reason: int | str | None = None  # stop string or token id that ended it
    token_ids: list[int] | UnsetType = UNSET  # output tokens, with return_token_ids


class ChatChunkChoice(msgspec.Struct, kw_only=True):
    index: int  # number of the choice, from 0
    delta: Delta  # what has been added since the last chunk
    logprobs: ChatLogprobs | None = None  # of the added tokens, where they were asked for
    finish_reason: ChatFinish | None = None  # why it ended, None while it goes on
    stop_reason: int | str | UnsetType | None = UNSET  # stop string or token id that ended it
    token_ids: list[int] | UnsetType = UNSET  # added tokens, with return_token_ids


class TextChoice(msgspec.Struct, kw_only=True):
    """Of completions, in whole answers and in chunks alike."""

    index: int  # over all prompts of the request
    text: str  # of a chunk: what is new
    logprobs: TextLogprobs | None = None  # None unless asked for
    finish_reason: FinishReason | None = None  # None while it goes on
    stop_reason: int | str | None = None  # stop string or token that ended it
    token_ids: list[int] | UnsetType = UNSET  # with return_token_ids
    prompt_token_ids: list[int] | UnsetType = UNSET  # likewise, in the first chunk
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET  # in vLLM's form, if asked for


class _Answer(msgspec.Struct, kw_only=True):
    """What whole answers and chunks have in common."""

    id: str  # the same in all chunks
    created: int  # seconds since 1970
    model: str  # as the client named it
    system_fingerprint: str | UnsetType = UNSET  # of the weights
    service_tier: Literal["default"] | UnsetType = UNSET  # only where the request names one
    kv_transfer_params: dict[str, Any] | UnsetType = UNSET  # handle of KV that is kept here
    ec_transfer_params: dict[str, Any] | UnsetType = UNSET  # handles of embeddings


class ChatCompletion(_Answer, kw_only=True):
    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class ChatCompletionChunk(_Answer, kw_only=True):
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class TextCompletion(_Answer, kw_only=True):
    object: Literal["text_completion"] = "text_completion"
    choices: list[TextChoice]
    usage: Usage | UnsetType | None = UNSET


Answer = ChatCompletion | ChatCompletionChunk | TextCompletion


class Fault(msgspec.Struct):
    """What is wrong; `param` is the field at fault, if one is."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(msgspec.Struct):
    """What a request that failed is answered with."""

    error: Fault


class ModelCard(msgspec.Struct, kw_only=True):
    """An entry of /v1/models: OpenAI's fields, then those that vLLM adds."""

    id: str  # name that requests give
    object: Literal["model"] = "model"  # always "model"
    created: int  # seconds since 1970
    owned_by: str = OWNER  # who serves it
    root: str  # the model's folder or name
    parent: str | None = None  # the model that an adapter belongs to
    max_model_len: int  # tokens of prompt and output


class ModelList(msgspec.Struct):
    data: list[ModelCard]
    object: Literal["list"] = "list"


def encode(answer: Answer | ModelList) -> bytes:
    """The JSON body of an answer that is not streamed."""
    return msgspec.json.encode(answer)


def encode_event(answer: Answer) -> bytes:
    """One server-sent event of a stream."""
    return b"data: " + msgspec.json.encode(answer) + b"\n\n"
