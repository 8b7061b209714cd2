"""Tokens that a request allows or rules out, beside its grammar."""

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.errors import InvalidRequest
from protocol.types import SamplingParams
from services.engine.sampling.token_rules import TokenRules, restricted

VOCABULARY = 8


class Only:
    """A grammar that allows some tokens, once it is compiled."""

    def __init__(self, *tokens: int, ready: bool = True) -> None:
        self.tokens = tokens
        self.ready = ready

    def another(self) -> "Only":
        return self

    def allowed(self, output: Sequence[int]) -> NDArray[np.bool_]:
        return np.isin(np.arange(VOCABULARY), self.tokens)


def rules(grammar: Only | None = None, **sampling: object) -> TokenRules:
    made = restricted(grammar, SamplingParams(**sampling), VOCABULARY)  # type: ignore[arg-type]
    assert isinstance(made, TokenRules)
    return made


def left(made: TokenRules, *output: int) -> list[int]:
    return np.flatnonzero(made.allowed(output)).tolist()


def test_without_rules_the_grammar_stands_alone() -> None:
    grammar = Only(1)
    assert restricted(grammar, SamplingParams(), VOCABULARY) is grammar
    assert restricted(None, SamplingParams(), VOCABULARY) is None


def test_only_allowed_tokens_are_left() -> None:
    assert left(rules(allowed_token_ids=(2, 5))) == [2, 5]
    assert left(rules(Only(5, 6), allowed_token_ids=(2, 5))) == [5]
    with pytest.raises(InvalidRequest) as caught:
        left(rules(Only(6), allowed_token_ids=(2, 5)))
    assert caught.value.param == "allowed_token_ids"


def test_a_bad_word_loses_its_last_token_where_the_others_came() -> None:
    made = rules(bad_words=((1, 2, 3), (4,), (2, 5)))
    assert left(made) == [0, 1, 2, 3, 5, 6, 7]
    assert left(made, 1) == [0, 1, 2, 3, 5, 6, 7]
    assert left(made, 1, 2) == [0, 1, 2, 6, 7]
    assert left(made, 7, 2) == [0, 1, 2, 3, 6, 7]
    assert left(made, 1, 2, 7) == [0, 1, 2, 3, 5, 6, 7]


def test_a_choice_follows_its_own_grammar() -> None:
    waiting = rules(Only(1, ready=False), bad_words=((4,),))
    assert not waiting.ready and not waiting.another().ready
    assert rules(Only(1), bad_words=((4,),)).another().ready and rules(bad_words=((4,),)).ready
