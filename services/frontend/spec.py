"""What is remembered of a request until its answer is written."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from protocol.openai import ChatCompletionRequest, SharedFields
from protocol.types import GenerateRequest


@dataclass(frozen=True)
class OutputSpec:
    """What the output side must know of a request.

    `end_token_ids`: tokens that end an answer and are not shown (EOS and stop tokens).
    `min_tokens`: stop strings count only in text that comes after so many tokens.
    `max_tool_calls`: so many are taken out of a choice's text; 0 leaves them in it.
    """

    request_id: str
    model: str
    chat: bool
    prompt_token_ids: Sequence[int]
    n: int = 1
    first_index: int = 0
    stop: tuple[str, ...] = ()
    end_token_ids: frozenset[int] = frozenset()
    min_tokens: int = 0
    include_stop_str: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    return_token_ids: bool = False
    max_tool_calls: int = 0


def describe_output(
    request: SharedFields,
    generate: GenerateRequest,
    eos_token_ids: Collection[int],
    *,
    first_index: int = 0,
    max_tool_calls: int = 0,
) -> OutputSpec:
    """What the answer to a rendered request must be like."""
    sampling, options = generate.sampling, request.stream_options
    eos = () if sampling.ignore_eos else eos_token_ids
    return OutputSpec(
        request_id=generate.request_id,
        model=generate.model,
        chat=isinstance(request, ChatCompletionRequest),
        prompt_token_ids=generate.token_ids,
        n=sampling.n,
        first_index=first_index,
        stop=sampling.stop,
        end_token_ids=frozenset((*eos, *sampling.stop_token_ids)),
        min_tokens=sampling.min_tokens,
        include_stop_str=sampling.include_stop_str_in_output,
        skip_special_tokens=sampling.skip_special_tokens,
        logprobs=sampling.logprobs,
        stream=bool(request.stream),
        include_usage=options is not None and options.include_usage,
        continuous_usage=options is not None and options.continuous_usage_stats,
        return_token_ids=bool(request.return_token_ids),
        max_tool_calls=max_tool_calls,
    )
