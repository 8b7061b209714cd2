"""What is remembered of a request until its answer is written."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from protocol.openai import ChatCompletionRequest, SharedFields
from protocol.types import GenerateRequest


@dataclass(frozen=True)
class OutputSpec:
    """What the output side must know of a request."""

    request_id: str  # shown to the client
    model: str  # shown to the client
    chat: bool  # chat completion, or text completion
    prompt_token_ids: Sequence[int]  # for usage, and for echoes of the prompt's ids
    n: int = 1  # choices
    first_index: int = 0  # number of the first choice, where a request has several prompts
    stop: tuple[str, ...] = ()  # strings that end the text
    # tokens that end an output and are not shown (EOS and stop tokens)
    end_token_ids: frozenset[int] = frozenset()
    min_tokens: int = 0  # stop strings count only in text that comes after so many tokens
    include_stop_str: bool = False  # show the stop string
    skip_special_tokens: bool = True  # leave special tokens out of the text
    logprobs: int | None = None  # alternatives shown per token, None for none
    stream: bool = False  # whether the answer is streamed
    include_usage: bool = False  # send usage at the end of a stream
    continuous_usage: bool = False  # send usage with every chunk
    return_token_ids: bool = False  # show token ids beside the text
    max_tool_calls: int = 0  # tool calls taken out of a choice's text; 0 leaves them in it
    calls_only: bool = False  # there is no text beside the tool calls


def describe_output(
    request: SharedFields,
    generate: GenerateRequest,
    eos_token_ids: Collection[int],
    *,
    first_index: int = 0,
    max_tool_calls: int = 0,
    calls_only: bool = False,
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
        calls_only=calls_only,
    )
