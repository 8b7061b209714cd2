"""Prompts cut to the length that a request asks for."""

from __future__ import annotations

from protocol.errors import InvalidRequest
from protocol.openai import ChatCompletionRequest, CompletionRequest
from services.frontend.sampling import COMPLETION_MAX_TOKENS

_FIELD = "truncate_prompt_tokens"


def truncated(
    request: ChatCompletionRequest | CompletionRequest, token_ids: list[int], limit: int
) -> list[int]:
    """`limit`: tokens of prompt and output together. `InvalidRequest` names the field at fault."""
    if request.truncate_prompt_tokens is None:
        if request.truncation_side is not None:
            raise InvalidRequest(f"truncation_side needs {_FIELD}", param="truncation_side")
        return token_ids
    kept = _kept(request, request.truncate_prompt_tokens, limit)
    if len(token_ids) <= kept:
        return token_ids
    return token_ids[:kept] if request.truncation_side == "right" else token_ids[-kept:]


def check_untruncated(request: ChatCompletionRequest) -> None:
    """`InvalidRequest` if the prompt, which has pictures, is to be cut."""
    if request.truncate_prompt_tokens is not None:
        raise InvalidRequest(f"{_FIELD}: a prompt with pictures is not cut", param=_FIELD)


def _kept(request: ChatCompletionRequest | CompletionRequest, wanted: int, limit: int) -> int:
    if wanted == 0 or wanted > limit:
        raise InvalidRequest(
            f"{_FIELD} is {wanted}, it must be -1 or from 1 to the model's limit of {limit}",
            param=_FIELD,
        )
    return wanted if wanted > 0 else max(1, limit - _output(request))


def _output(request: ChatCompletionRequest | CompletionRequest) -> int:
    """Tokens that the output may have."""
    if isinstance(request, ChatCompletionRequest):
        return request.max_completion_tokens or request.max_tokens or 1
    return COMPLETION_MAX_TOKENS if request.max_tokens is None else max(1, request.max_tokens)
