"""Token ids of a request are those of the model, and its outputs have an end."""

from typing import Any

import pytest

from protocol.errors import InvalidRequest
from protocol.sampling_checks import check_request, check_sampling, check_token_ids
from protocol.types import GenerateRequest, SamplingParams

SIZE = 100
NAMED = ("stop_token_ids", "logit_bias", "allowed_token_ids", "logprob_token_ids", "bad_words")


def sampling(name: str, ids: list[int]) -> SamplingParams:
    if name == "logit_bias":
        return SamplingParams(logit_bias=dict.fromkeys(ids, 1.0))
    given: Any = (tuple(ids),) if name == "bad_words" else tuple(ids)
    return SamplingParams(**{name: given})


@pytest.mark.parametrize("ids", [[], [0], [99], [0, 99], [5, 5]])
def test_ids_of_the_vocabulary_are_taken(ids: list[int]) -> None:
    check_token_ids(ids, "x", SIZE)
    for name in NAMED:
        if ids or name != "bad_words":
            check_sampling(sampling(name, ids), SIZE)


@pytest.mark.parametrize("ids", [[-1], [100], [0, 100], [-1, 5], [2**62]])
def test_others_are_refused_and_their_field_is_named(ids: list[int]) -> None:
    for name in NAMED:
        with pytest.raises(InvalidRequest, match=f"{name}: token ids must be from 0 to 99") as bad:
            check_sampling(sampling(name, ids), SIZE)
        assert bad.value.param == name
    for request in (asked(token_ids=ids), asked(emitted={0: ids})):
        with pytest.raises(InvalidRequest, match="from 0 to 99"):
            check_request(request, SIZE)


def asked(
    token_ids: list[int] | None = None, emitted: dict[int, list[int]] | None = None, **params: int
) -> GenerateRequest:
    ids = [1] if token_ids is None else token_ids
    return GenerateRequest("r", ids, SamplingParams(**params), emitted=emitted or {})  # type: ignore[arg-type]


def test_a_word_has_a_token_and_a_prompt_too() -> None:
    with pytest.raises(InvalidRequest, match="a word has no token"):
        check_sampling(SamplingParams(bad_words=((),)), SIZE)
    with pytest.raises(InvalidRequest, match="the prompt is empty"):
        check_request(asked([]), SIZE)


def test_no_more_tokens_are_asked_for_than_there_may_be() -> None:
    check_request(asked(min_tokens=4, max_tokens=4), SIZE)
    with pytest.raises(InvalidRequest, match="min_tokens must be at most max_tokens, 4, not 5"):
        check_request(asked(min_tokens=5, max_tokens=4), SIZE)
    check_request(asked(emitted={0: [1, 2]}, max_tokens=3), SIZE)
    with pytest.raises(InvalidRequest, match="choice 1 has all of its 2 tokens"):
        check_request(asked(emitted={0: [1], 1: [1, 2]}, max_tokens=2), SIZE)
