"""Sampling parameters of a request, checked, with the model's and OpenAI's defaults."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from protocol.bounds import within_bounds
from protocol.errors import InvalidRequest
from protocol.openai import ChatCompletionRequest, CompletionRequest, SharedFields
from protocol.types import GREEDY_BELOW, SamplingParams
from protocol.vocabulary import check_sampling

MAX_STOPS = 16
MAX_STOP_CHARS = 1024
COMPLETION_MAX_TOKENS = 16  # OpenAI's default for completions; chats go on to the model's limit
_NEUTRAL: Mapping[str, Any] = MappingProxyType({"modalities": ["text"], "best_of": 1})
_UNSUPPORTED = (
    "prompt_logprobs",
    "use_beam_search",
    "truncate_prompt_tokens",
    "bad_words",
    "allowed_token_ids",
    "mm_processor_kwargs",
    "chat_template",
    "modalities",
    "functions",
    "echo",
    "suffix",
    "best_of",
)


def refuse_unsupported(request: SharedFields) -> None:
    """`InvalidRequest` for a field that changes the answer and is not honoured."""
    for name in _UNSUPPORTED:
        value = getattr(request, name, None)
        if value and value != _NEUTRAL.get(name):
            raise InvalidRequest(f"{name} is not supported", param=name, code="unsupported_field")


def sampling_params(
    request: ChatCompletionRequest | CompletionRequest,
    *,
    room: int,
    vocab_size: int,
    defaults: Mapping[str, Any],
    grammar: str = "",
) -> SamplingParams:
    """`room`: how many tokens there are at most for the answer. `defaults`: what
    generation_config.json sets. `grammar`: what the output is held to. `InvalidRequest` names the
    field that is out of range.
    """
    temperature = _number(request, defaults, "temperature", 1.0)
    temperature = 0.0 if abs(temperature) < GREEDY_BELOW else temperature
    sampling = within_bounds(
        SamplingParams(
            max_tokens=_max_tokens(request, room, defaults),
            min_tokens=request.min_tokens,
            n=1 if request.n is None else request.n,
            temperature=temperature,
            top_p=_number(request, defaults, "top_p", 1.0),
            top_k=_top_k(request, defaults),
            min_p=_number(request, defaults, "min_p", 0.0),
            seed=_seed(request.seed, greedy=temperature == 0.0),
            presence_penalty=_number(request, {}, "presence_penalty", 0.0),
            frequency_penalty=_number(request, {}, "frequency_penalty", 0.0),
            repetition_penalty=_number(request, defaults, "repetition_penalty", 1.0),
            logit_bias=_logit_bias(request.logit_bias),
            stop=_stop(request.stop),
            stop_token_ids=tuple(request.stop_token_ids or ()),
            ignore_eos=request.ignore_eos,
            logprobs=_logprobs(request),
            skip_special_tokens=request.skip_special_tokens,
            include_stop_str_in_output=request.include_stop_str_in_output,
            grammar=grammar,
        )
    )
    check_sampling(sampling, vocab_size)
    return sampling


def fit(
    sampling: SamplingParams,
    request: ChatCompletionRequest | CompletionRequest,
    *,
    room: int,
    defaults: Mapping[str, Any],
) -> SamplingParams:
    """`sampling` for a prompt that leaves `room` tokens; `InvalidRequest` if more are asked for."""
    max_tokens = _max_tokens(request, room, defaults)
    if max_tokens == sampling.max_tokens:
        return sampling
    min_tokens = min(sampling.min_tokens, max_tokens)
    return msgspec.structs.replace(sampling, max_tokens=max_tokens, min_tokens=min_tokens)


def _number(request: SharedFields, defaults: Mapping[str, Any], name: str, default: float) -> float:
    value = getattr(request, name)
    return float(defaults.get(name, default) if value is None else value)


def _max_tokens(
    request: ChatCompletionRequest | CompletionRequest, room: int, defaults: Mapping[str, Any]
) -> int:
    name, value = "max_tokens", request.max_tokens
    if isinstance(request, ChatCompletionRequest) and request.max_completion_tokens is not None:
        name, value = "max_completion_tokens", request.max_completion_tokens
    if value is None:
        chat = isinstance(request, ChatCompletionRequest)
        default = room if chat else COMPLETION_MAX_TOKENS
        return min(room, int(defaults.get("max_new_tokens", default)))
    if value > room:
        raise InvalidRequest(
            f"{name} is {value}, but the prompt leaves room for {room} tokens only",
            param=name,
            code="context_length_exceeded",
        )
    return value


def _top_k(request: SharedFields, defaults: Mapping[str, Any]) -> int:
    """0 and vLLM's −1 both mean all tokens."""
    value = request.top_k if request.top_k is not None else int(defaults.get("top_k", 0))
    return max(0, value)


def _seed(seed: int | None, *, greedy: bool) -> int | None:
    """The client's seed, or one drawn here so that the request can be replayed."""
    if seed is None:
        return None if greedy else secrets.randbits(53)
    return seed


def _logit_bias(bias: Mapping[str, float] | None) -> dict[int, float]:
    try:
        return {int(token): value for token, value in (bias or {}).items()}
    except ValueError:
        raise InvalidRequest("logit_bias: keys must be token ids", param="logit_bias") from None


def _stop(stop: str | list[str] | None) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(strings) > MAX_STOPS:
        raise InvalidRequest(
            f"stop must be at most {MAX_STOPS} strings, not {len(strings)}", param="stop"
        )
    if not all(0 < len(string) <= MAX_STOP_CHARS for string in strings):
        raise InvalidRequest(
            f"stop: strings must have 1 to {MAX_STOP_CHARS} characters", param="stop"
        )
    return strings


def _logprobs(request: ChatCompletionRequest | CompletionRequest) -> int | None:
    if isinstance(request, CompletionRequest):
        return request.logprobs
    if request.top_logprobs and not request.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs: true", param="top_logprobs")
    return (request.top_logprobs or 0) if request.logprobs else None
