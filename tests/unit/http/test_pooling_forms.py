"""Answers to pooling requests as JSON."""

import asyncio

import msgspec
import pytest

from protocol.pooling import packed
from services.http import pooling_forms
from services.http.pooling_forms import Answered


@pytest.mark.parametrize("most", [0, 1 << 20])
def test_answers_of_any_size_are_made_alike(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooling_forms, "_INLINE_BYTES", most)
    found = Answered("r", "m", 5)
    for vector in ([0.5, -1.0], [2.0, 0.25]):
        found.add(packed(vector), [5, 6, 7], 1)
    assert found.size == 16
    made = pooling_forms.embedding_list(found, "float")
    response = asyncio.run(pooling_forms.answer(found, lambda: made))
    assert response.body == msgspec.json.encode(made)
    assert b'"embedding":[0.5,-1.0]' in response.body


def test_vectors_of_tokens_are_told_one_by_one_but_for_the_first() -> None:
    found = Answered("r", "m", 5)
    found.add(packed([0.5, -1.0, 2.0, 0.25]), [5, 6, 7], 0)
    found.add(packed([1.0, 0.0]), [5, 6], 0)
    made = pooling_forms.colbert_list(found)
    assert [one.embedding for one in made.data] == [[[0.5, -1.0], [2.0, 0.25]], [[1.0, 0.0]]]
    assert (made.usage.prompt_tokens, made.data[1].index) == (5, 1)
