"""Requests whose prompt's own tokens are scored: what is computed of them."""

from __future__ import annotations

from protocol.errors import InvalidRequest
from protocol.openai import ChatCompletionRequest, CompletionRequest

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
