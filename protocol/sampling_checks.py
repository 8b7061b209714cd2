"""What a request must be beyond the types of its fields: token ids of the vocabulary, fields that
go with beam search, a priority that is allowed.
"""

from __future__ import annotations

from collections.abc import Collection

from protocol.bounds import MAX_LOGPROBS
from protocol.errors import InvalidRequest
from protocol.types import GenerateRequest, SamplingParams

_NEUTRAL = (
    "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias",
    "allowed_token_ids", "bad_words", "stop", "logprob_token_ids", "prompt_logprobs", "grammar",
)  # fmt: skip
_SHOWN = {"grammar": "response_format"}


def check_beams(sampling: SamplingParams) -> None:
    """`InvalidRequest` names a field that beam search leaves no room for: beams are ranked by the
    model's own log-probabilities."""
    if not sampling.beam_width:
        return
    if sampling.n > sampling.beam_width:
        raise InvalidRequest(
            f"n is {sampling.n}, more than the {sampling.beam_width} beams", param="n"
        )
    none = SamplingParams()
    for name in _NEUTRAL:
        if getattr(sampling, name) != getattr(none, name):
            field = _SHOWN.get(name, name)
            raise InvalidRequest(f"{field} cannot be combined with use_beam_search", param=field)


def alternatives(sampling: SamplingParams, ends: int) -> int:
    """Likeliest tokens that each beam must know when `ends` tokens end an output: of as many, one
    goes on in every place. `InvalidRequest` if that is more than an engine tells."""
    count = sampling.beam_width + ends
    if count > MAX_LOGPROBS:
        raise InvalidRequest(
            f"stop_token_ids: {sampling.beam_width} beams leave room for"
            f" {MAX_LOGPROBS - sampling.beam_width} tokens that end an output, not {ends}",
            param="stop_token_ids",
        )
    return max(count, sampling.logprobs or 0)


def check_token_ids(ids: Collection[int], name: str, vocab_size: int) -> None:
    """`InvalidRequest` for the field `name` unless all `ids` are below `vocab_size`."""
    if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
        raise InvalidRequest(f"{name}: token ids must be from 0 to {vocab_size - 1}", param=name)


def check_sampling(sampling: SamplingParams, vocab_size: int) -> None:
    """`InvalidRequest` names the field at fault, beyond what its type says."""
    check_beams(sampling)
    check_token_ids(sampling.stop_token_ids, "stop_token_ids", vocab_size)
    check_token_ids(sampling.logit_bias, "logit_bias", vocab_size)
    check_token_ids(sampling.allowed_token_ids, "allowed_token_ids", vocab_size)
    check_token_ids(sampling.logprob_token_ids, "logprob_token_ids", vocab_size)
    for word in sampling.bad_words:
        if not word:
            raise InvalidRequest("bad_words: a word has no token", param="bad_words")
        check_token_ids(word, "bad_words", vocab_size)
    if sampling.min_tokens > sampling.max_tokens:
        raise InvalidRequest(
            f"min_tokens must be at most max_tokens, {sampling.max_tokens}, not "
            f"{sampling.min_tokens}",
            param="min_tokens",
        )


def check_request(request: GenerateRequest, vocab_size: int) -> None:
    """`InvalidRequest` names the field at fault."""
    check_sampling(request.sampling, vocab_size)
    if not request.token_ids:
        raise InvalidRequest("the prompt is empty", param="token_ids")
    check_token_ids(request.token_ids, "token_ids", vocab_size)
    for index, tokens in request.emitted.items():
        check_token_ids(tokens, "emitted", vocab_size)
        if len(tokens) >= request.sampling.max_tokens:
            raise InvalidRequest(
                f"emitted: choice {index} has all of its {request.sampling.max_tokens} tokens",
                param="emitted",
            )


def check_priority(priority: float, lowest: int) -> None:
    """`InvalidRequest` if a request would run before more others than `lowest` allows."""
    if priority < lowest:
        raise InvalidRequest(
            f"priority must be at least {lowest} here, not {priority}: lower values "
            "run earlier, and --min-priority says how low they may be",
            param="priority",
        )
