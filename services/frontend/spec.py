"""What a request wants of its answer: what is computed for it, log-probabilities and scores of the
prompt too, and what is remembered until it is written."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from protocol.errors import InvalidRequest
from protocol.openai import ChatCompletionRequest, CompletionRequest
from protocol.request_record import RequestRecord
from protocol.types import GenerateRequest
from services.frontend.parsing.reading import Reading

Request = ChatCompletionRequest | CompletionRequest
_PLAIN = Reading()


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


def shown_logprobs(request: Request) -> int | None:
    """Alternatives to show per token of the output, named ones included, None for no
    log-probabilities."""
    top = top_logprobs(request)
    return None if top is None else top + len(set(request.logprob_token_ids or ()))


def top_logprobs(request: Request) -> int | None:
    """Alternatives to each token of the output, without those that are named."""
    if isinstance(request, CompletionRequest):
        return request.logprobs
    if request.top_logprobs and not request.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs: true", param="top_logprobs")
    return (request.top_logprobs or 0) if request.logprobs else None


def computed_choices(request: Request) -> int:
    """How many are computed."""
    n = 1 if request.n is None else request.n
    best_of = request.best_of if isinstance(request, CompletionRequest) else None
    if best_of is None or best_of == n:
        return n
    if best_of < n:
        raise InvalidRequest(f"best_of is {best_of}, less than n, {n}", param="best_of")
    # There `best_of` is how many beams are kept; no more than `n` become choices.
    if request.use_beam_search:
        return n
    if request.stream:
        raise InvalidRequest("best_of cannot be streamed", param="best_of")
    return best_of


def computed_logprobs(request: Request) -> int | None:
    """Alternatives to compute: choices that are ranked need those that are not shown."""
    shown = top_logprobs(request)
    ranked = isinstance(request, CompletionRequest) and computed_choices(request) != (
        request.n or 1
    )
    return 0 if ranked and shown is None else shown


def named_tokens(request: Request) -> tuple[int, ...]:
    """Tokens whose log-probabilities are asked for, each once."""
    named = request.logprob_token_ids or ()
    if named and top_logprobs(request) is None:
        raise InvalidRequest("logprob_token_ids needs logprobs", param="logprob_token_ids")
    if named and echoes(request):
        raise InvalidRequest(
            "logprob_token_ids cannot be combined with echo", param="logprob_token_ids"
        )
    return tuple(dict.fromkeys(named))


@dataclass(frozen=True)
class OutputSpec:
    """What the output side must know of a request."""

    request_id: str  # shown to the client
    model: str  # shown to the client
    chat: bool  # chat completion, or text completion
    prompt_token_ids: Sequence[int]  # for usage, and for echoes of the prompt's ids
    audio_tokens: int = 0  # of the prompt, those that stand for audio
    n: int = 1  # choices that are computed
    kept: int = 0  # choices that are answered, the best of those; 0 for all
    answer_id: str = ""  # shown to the client; "" for `request_id`
    system_fingerprint: str = ""  # of what answers
    tells_tier: bool = False  # whether the client asked for a service tier
    first_index: int = 0  # number of the first choice, where a request has several prompts
    stop: tuple[str, ...] = ()  # strings that end the text
    # tokens that end an output and are not shown (EOS and stop tokens)
    end_token_ids: frozenset[int] = frozenset()
    min_tokens: int = 0  # stop strings count only in text that comes after so many tokens
    include_stop_str: bool = False  # show the stop string
    skip_special_tokens: bool = True  # leave special tokens out of the text
    logprobs: int | None = None  # alternatives shown per token, None for none
    tokens_as_ids: bool = False  # show tokens of logprobs as token_id:5
    echo: bool = False  # show the prompt before the output
    prompt_text: str | None = None  # the prompt as it came, None if it came as tokens
    prompt_logprobs: int | None = None  # as `logprobs`, of the prompt, in vLLM's form
    prompt_only: bool = False  # show nothing of the output
    stream: bool = False  # whether the answer is streamed
    include_usage: bool = False  # send usage at the end of a stream
    continuous_usage: bool = False  # send a choice's usage with each of its chunks
    return_token_ids: bool = False  # show token ids beside the text
    reading: Reading = _PLAIN  # how tool calls and reasoning are taken out of the text
    show_reasoning: bool = True  # whether the client wants the reasoning


def describe_output(
    request: Request,
    generate: GenerateRequest,
    eos_token_ids: Collection[int],
    *,
    first_index: int = 0,
    reading: Reading = _PLAIN,
    prompt_text: str | None = None,
    answer_id: str = "",
    system_fingerprint: str = "",
) -> OutputSpec:
    """What the answer to a rendered request must be like."""
    sampling, options = generate.sampling, request.stream_options
    include_usage = options is not None and bool(options.include_usage)
    eos = () if sampling.ignore_eos else eos_token_ids
    return OutputSpec(
        request_id=generate.request_id,
        model=generate.model,
        chat=isinstance(request, ChatCompletionRequest),
        prompt_token_ids=generate.token_ids,
        audio_tokens=sum(i.length for i in generate.mm_items if i.modality == "audio"),
        n=sampling.n,
        kept=1 if request.n is None else request.n,
        answer_id=answer_id,
        system_fingerprint=system_fingerprint,
        tells_tier=request.service_tier is not None,
        first_index=first_index,
        stop=sampling.stop,
        end_token_ids=frozenset((*eos, *sampling.stop_token_ids)),
        min_tokens=sampling.min_tokens,
        include_stop_str=sampling.include_stop_str_in_output,
        skip_special_tokens=sampling.skip_special_tokens,
        logprobs=shown_logprobs(request),
        tokens_as_ids=bool(request.return_tokens_as_token_ids),
        echo=echoes(request),
        prompt_text=prompt_text,
        prompt_logprobs=request.prompt_logprobs,
        prompt_only=is_scored_only(request),
        stream=bool(request.stream),
        include_usage=include_usage,
        continuous_usage=include_usage and bool(options and options.continuous_usage_stats),
        return_token_ids=bool(request.return_token_ids),
        reading=reading,
        show_reasoning=not isinstance(request, ChatCompletionRequest) or request.include_reasoning,
    )


@dataclass(frozen=True)
class RenderedRequest:
    """A request as the rest of a server sees it."""

    generate: GenerateRequest  # what a worker is asked
    # bytes by mm_hash of items that came with their medium; references are not in it
    media: Mapping[str, bytes]
    output: OutputSpec  # what the answer must be like
    tenant: str = ""  # who asks: a digest of the API key, "" for none
    session: str = ""  # the conversation, "" for none
    # the client's names of `generate.mm_items`, None where it gave none
    uuids: Sequence[str | None] = ()
    # what is noted of the request on its way
    record: RequestRecord = field(default_factory=RequestRecord)
    model: str = ""  # first name of the model it is rendered for, "" for the server's first
