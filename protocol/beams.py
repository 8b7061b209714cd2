"""What a request for beam search may ask for beside it."""

from __future__ import annotations

from protocol.bounds import MAX_LOGPROBS
from protocol.errors import InvalidRequest
from protocol.types import SamplingParams

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
