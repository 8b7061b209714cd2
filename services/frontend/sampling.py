"""Sampling parameters of a request, checked, with the model's and OpenAI's defaults."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from protocol.bounds import MAX_BEAMS
from protocol.decoding import within_bounds
from protocol.errors import InvalidRequest
from protocol.openai import ChatCompletionRequest, CompletionRequest, SharedFields
from protocol.sampling_checks import check_sampling
from protocol.types import GREEDY_BELOW, SamplingParams
from services.frontend.spec import (
    Request,
    check_scoring,
    computed_choices,
    computed_logprobs,
    is_scored_only,
    named_tokens,
    scored,
)
from services.frontend.tokenizer import Tokenizer

MAX_STOPS = 16
MAX_STOP_CHARS = 1024  # of each: so much text may be held back
MAX_BIAS = 100
_SHOWN = 32
COMPLETION_MAX_TOKENS = 16  # OpenAI's default for completions; chats go on to the model's limit
MAX_BAD_WORDS = 128
_Values = Mapping[str, tuple[object, ...]]
_IDLE: _Values = MappingProxyType({"length_penalty": (None, 1.0), "early_stopping": (None, False)})
_UNDRAWN: _Values = MappingProxyType(
    {
        "temperature": (None, 0.0, 1.0),
        "top_p": (None, 1.0),
        "top_k": (None, 0, -1),
        "min_p": (None, 0.0),
    }
)


def sampling_params(
    request: Request,
    *,
    room: int,
    vocab_size: int,
    defaults: Mapping[str, Any],
    tokenizer: Tokenizer,
    grammar: str = "",
) -> SamplingParams:
    """`room`: how many tokens there are at most for the answer. `defaults`: what
    generation_config.json sets. `grammar`: what the output is held to. `InvalidRequest` names the
    field that is out of range.
    """
    check_scoring(request)
    temperature = _number(request, defaults, "temperature", 1.0)
    # Dividing logits by less than that overflows; vLLM takes it for greedy too.
    temperature = 0.0 if abs(temperature) < GREEDY_BELOW else temperature
    sampling = within_bounds(
        SamplingParams(
            max_tokens=_max_tokens(request, room, room, defaults),
            min_tokens=request.min_tokens,
            n=computed_choices(request),
            temperature=temperature,
            top_p=_number(request, defaults, "top_p", 1.0),
            top_k=_top_k(request, defaults),
            min_p=_number(request, defaults, "min_p", 0.0),
            seed=_seed(request.seed, greedy=temperature == 0.0),
            presence_penalty=_number(request, {}, "presence_penalty", 0.0),
            frequency_penalty=_number(request, {}, "frequency_penalty", 0.0),
            repetition_penalty=_number(request, defaults, "repetition_penalty", 1.0),
            logit_bias=_logit_bias(request.logit_bias),
            allowed_token_ids=_allowed(request.allowed_token_ids),
            bad_words=_bad_words(request.bad_words, tokenizer),
            stop=_stop(request.stop),
            stop_token_ids=tuple(request.stop_token_ids or ()),
            ignore_eos=request.ignore_eos,
            logprobs=computed_logprobs(request),
            logprob_token_ids=named_tokens(request),
            prompt_logprobs=scored(request),
            skip_special_tokens=request.skip_special_tokens,
            include_stop_str_in_output=request.include_stop_str_in_output,
            grammar=grammar,
        )
    )
    sampling = with_beams(sampling, request)
    check_sampling(sampling, vocab_size)
    return sampling


def with_beams(sampling: SamplingParams, request: Request) -> SamplingParams:
    """`sampling` of a request that asks for beam search, without the model's defaults for drawing
    and repetition; as it is for others. `InvalidRequest` names a field that does not go with it."""
    # Refused rather than ignored: the client meant a search that it does not get.
    if not request.use_beam_search:
        for name, idle in _IDLE.items():
            if getattr(request, name) not in idle:
                raise InvalidRequest(f"{name} needs use_beam_search: true", param=name)
        return sampling
    for name, idle in _UNDRAWN.items():
        if getattr(request, name) not in idle:
            raise InvalidRequest(
                f"{name} cannot be combined with use_beam_search: beams are not drawn", param=name
            )
    best_of = request.best_of if isinstance(request, CompletionRequest) else None
    if (width := best_of or sampling.n) > MAX_BEAMS:
        name = "best_of" if best_of else "n"
        raise InvalidRequest(f"{name} is {width}, more than {MAX_BEAMS} beams", param=name)
    penalty = request.length_penalty
    return msgspec.structs.replace(
        sampling,
        temperature=0.0,
        top_p=1.0,
        top_k=0,
        min_p=0.0,
        seed=None,
        repetition_penalty=request.repetition_penalty or 1.0,
        beam_width=width,
        length_penalty=1.0 if penalty is None else penalty,
        early_stopping=request.early_stopping or False,
    )


def fit(
    sampling: SamplingParams,
    request: Request,
    *,
    room: int,
    limit: int,
    defaults: Mapping[str, Any],
) -> SamplingParams:
    """`sampling` for a prompt that leaves `room` of `limit` tokens; `InvalidRequest` if more are
    asked for."""
    max_tokens = _max_tokens(request, room, limit, defaults)
    if max_tokens == sampling.max_tokens:
        return sampling
    min_tokens = min(sampling.min_tokens, max_tokens)
    return msgspec.structs.replace(sampling, max_tokens=max_tokens, min_tokens=min_tokens)


def _number(request: SharedFields, defaults: Mapping[str, Any], name: str, default: float) -> float:
    value = getattr(request, name)
    return float(defaults.get(name, default) if value is None else value)


def _max_tokens(request: Request, room: int, limit: int, defaults: Mapping[str, Any]) -> int:
    name, value = "max_tokens", request.max_tokens
    if isinstance(request, ChatCompletionRequest) and request.max_completion_tokens is not None:
        name, value = "max_completion_tokens", request.max_completion_tokens
    if is_scored_only(request):
        value = 1  # an engine has no request without output; its token is not shown
    elif value == 0:
        raise InvalidRequest(
            f"{name} may be 0 only in completions with echo or prompt_logprobs",
            param=name,
            code="integer_below_min_value",
        )
    if value is None:
        chat = isinstance(request, ChatCompletionRequest)
        default = room if chat else COMPLETION_MAX_TOKENS
        return min(room, int(defaults.get("max_new_tokens", default)))
    if value > room:
        said = f"{name} is {value}, but the model's limit of {limit} tokens "
        # Before the prompt is rendered its length is not known, and the whole limit is room.
        prompt = f"leaves room for {room} after a prompt of {limit - room}"
        raise InvalidRequest(
            said + (prompt if room < limit else "counts those of prompt and answer together"),
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
        # 53 bits: clients in JavaScript read numbers as doubles.
        return None if greedy else secrets.randbits(53)
    return seed


def _logit_bias(bias: Mapping[str, float] | None) -> dict[int, float]:
    return {_biased(token): _bias(token, value) for token, value in (bias or {}).items()}


def _biased(token: str) -> int:
    try:
        return int(token)
    except ValueError:
        raise InvalidRequest(
            f"logit_bias: the key {token[:_SHOWN]!r} is no token id", param="logit_bias"
        ) from None


def _bias(token: str, value: float) -> float:
    if not -MAX_BIAS <= value <= MAX_BIAS:
        raise InvalidRequest(
            f"logit_bias: the bias of token {token[:_SHOWN]} is {value}, it must be from"
            f" -{MAX_BIAS} to {MAX_BIAS}",
            param="logit_bias",
        )
    return value


def _allowed(token_ids: Sequence[int] | None) -> tuple[int, ...]:
    if token_ids is not None and not token_ids:
        raise InvalidRequest("allowed_token_ids must not be empty", param="allowed_token_ids")
    return tuple(token_ids or ())


def _bad_words(words: Sequence[str] | None, tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Each word's tokens as it stands, and as it stands after a blank."""
    found: dict[tuple[int, ...], None] = {}
    for word in words or ():
        if not word.strip() or len(word) > MAX_STOP_CHARS or len(words or ()) > MAX_BAD_WORDS:
            raise InvalidRequest(
                f"bad_words must be at most {MAX_BAD_WORDS} texts of 1 to {MAX_STOP_CHARS}"
                " characters",
                param="bad_words",
            )
        # Within a sentence most tokenizers have the blank in the word's first token.
        for spelled in (word, f" {word.lstrip()}"):
            found[tuple(tokenizer.encode(spelled))] = None
    return tuple(found)


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
