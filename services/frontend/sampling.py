"""Sampling parameters of a request, checked, with the model's and OpenAI's defaults."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from protocol.errors import InvalidRequest
from protocol.openai import ChatCompletionRequest, CompletionRequest, SharedFields
from protocol.types import SamplingParams

MAX_CHOICES = 128
MAX_LOGPROBS = 20
MAX_STOPS = 16
MAX_STOP_CHARS = 1024
COMPLETION_MAX_TOKENS = 16  # OpenAI's default for completions; chats go on to the model's limit
GREEDY_BELOW = 1e-5
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
    max_tokens = _max_tokens(request, room, defaults)
    temperature = _number(request, defaults, "temperature", 1.0, least=0.0)
    temperature = 0.0 if temperature < GREEDY_BELOW else temperature
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=_integer(request, "min_tokens", 0, 0, max_tokens),
        n=_integer(request, "n", 1, 1, MAX_CHOICES),
        temperature=temperature,
        top_p=_number(request, defaults, "top_p", 1.0, above=0.0, most=1.0),
        top_k=_top_k(request, defaults),
        min_p=_number(request, defaults, "min_p", 0.0, least=0.0, most=1.0),
        seed=_seed(request.seed, greedy=temperature == 0.0),
        presence_penalty=_number(request, {}, "presence_penalty", 0.0, least=-2.0, most=2.0),
        frequency_penalty=_number(request, {}, "frequency_penalty", 0.0, least=-2.0, most=2.0),
        repetition_penalty=_number(request, defaults, "repetition_penalty", 1.0, above=0.0),
        logit_bias=_logit_bias(request.logit_bias, vocab_size),
        stop=_stop(request.stop),
        stop_token_ids=_token_ids(request.stop_token_ids, "stop_token_ids", vocab_size),
        ignore_eos=request.ignore_eos,
        logprobs=_logprobs(request),
        skip_special_tokens=request.skip_special_tokens,
        include_stop_str_in_output=request.include_stop_str_in_output,
        grammar=grammar,
    )


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


def _out_of_range(name: str, wanted: str, value: object) -> InvalidRequest:
    return InvalidRequest(f"{name} must be {wanted}, not {value}", param=name)


def _number(
    request: SharedFields,
    defaults: Mapping[str, Any],
    name: str,
    default: float,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
) -> float:
    value = getattr(request, name)
    if value is None:
        return float(defaults.get(name, default))
    if not math.isfinite(value) or value < least or value <= above or value > most:
        lower = f"at least {least:g}" if least > -math.inf else f"more than {above:g}"
        upper = f" and at most {most:g}" if most < math.inf else ""
        raise _out_of_range(name, lower + upper, value)
    return float(value)


def _integer(request: SharedFields, name: str, default: int, least: int, most: int) -> int:
    value = getattr(request, name)
    if value is None:
        return default
    if not least <= value <= most:
        raise _out_of_range(name, f"between {least} and {most}", value)
    return int(value)


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
    if value < 1:
        raise _out_of_range(name, "at least 1", value)
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
    if not -1 <= value < 1 << 31:
        raise _out_of_range("top_k", "-1, 0 or positive", value)
    return max(0, value)


def _seed(seed: int | None, *, greedy: bool) -> int | None:
    """The client's seed, or one drawn here so that the request can be replayed."""
    if seed is None:
        return None if greedy else secrets.randbits(53)
    if not -(1 << 63) <= seed < 1 << 63:
        raise _out_of_range("seed", "a 64-bit integer", seed)
    return seed


def _logit_bias(bias: Mapping[str, float] | None, vocab_size: int) -> dict[int, float]:
    if not bias:
        return {}
    try:
        by_id = {int(token): value for token, value in bias.items()}
    except ValueError:
        raise InvalidRequest("logit_bias: keys must be token ids", param="logit_bias") from None
    _token_ids(list(by_id), "logit_bias", vocab_size)
    for value in by_id.values():
        if not -100 <= value <= 100:
            raise _out_of_range("logit_bias", "between -100 and 100", value)
    return by_id


def _token_ids(ids: Sequence[int] | None, name: str, vocab_size: int) -> tuple[int, ...]:
    for token_id in ids or ():
        if not 0 <= token_id < vocab_size:
            raise _out_of_range(name, f"ids from 0 to {vocab_size - 1}", token_id)
    return tuple(ids or ())


def _stop(stop: str | list[str] | None) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(strings) > MAX_STOPS:
        raise _out_of_range("stop", f"at most {MAX_STOPS} strings", len(strings))
    if not all(0 < len(string) <= MAX_STOP_CHARS for string in strings):
        raise InvalidRequest(
            f"stop: strings must have 1 to {MAX_STOP_CHARS} characters", param="stop"
        )
    return strings


def _logprobs(request: ChatCompletionRequest | CompletionRequest) -> int | None:
    if isinstance(request, CompletionRequest):
        if request.logprobs is None:
            return None
        return _integer(request, "logprobs", 0, 0, MAX_LOGPROBS)
    if request.top_logprobs and not request.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs: true", param="top_logprobs")
    top = _integer(request, "top_logprobs", 0, 0, MAX_LOGPROBS)
    return top if request.logprobs else None
