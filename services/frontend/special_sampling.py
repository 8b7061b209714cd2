"""Requests for beam search, and those that show log-probabilities or score their prompt: which
fields go together, and what is computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from protocol.bounds import MAX_BEAMS
from protocol.errors import InvalidRequest
from protocol.openai import ChatCompletionRequest, CompletionRequest
from protocol.types import SamplingParams

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


def with_beams(
    sampling: SamplingParams, request: ChatCompletionRequest | CompletionRequest
) -> SamplingParams:
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


Request = ChatCompletionRequest | CompletionRequest


def echoes(request: Request) -> bool:
    """Whether the answer begins with the prompt."""
    return isinstance(request, CompletionRequest) and bool(request.echo)


def _echoed_logprobs(request: Request) -> int | None:
    """Alternatives shown of the prompt's tokens beside the output's."""
    if isinstance(request, CompletionRequest) and request.echo:
        return request.logprobs
    return None


def scored(request: Request) -> int | None:
    """Alternatives to compute for each token of the prompt, None if none is scored."""
    wanted = (request.prompt_logprobs, _echoed_logprobs(request))
    return max((top for top in wanted if top is not None), default=None)


def is_scored_only(request: Request) -> bool:
    """Whether nothing but the prompt is answered."""
    if request.max_tokens != 0 or not isinstance(request, CompletionRequest):
        return False
    return echoes(request) or request.prompt_logprobs is not None


def check_scoring(request: Request) -> None:
    """`InvalidRequest` for what vLLM does not stream either."""
    if request.stream and request.prompt_logprobs is not None:
        raise InvalidRequest(
            "prompt_logprobs cannot be streamed: leave stream out", param="prompt_logprobs"
        )


def shown_logprobs(request: ChatCompletionRequest | CompletionRequest) -> int | None:
    """Alternatives to show per token of the output, named ones included, None for no
    log-probabilities."""
    top = top_logprobs(request)
    return None if top is None else top + len(set(request.logprob_token_ids or ()))


def top_logprobs(request: ChatCompletionRequest | CompletionRequest) -> int | None:
    """Alternatives to each token of the output, without those that are named."""
    if isinstance(request, CompletionRequest):
        return request.logprobs
    if request.top_logprobs and not request.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs: true", param="top_logprobs")
    return (request.top_logprobs or 0) if request.logprobs else None
