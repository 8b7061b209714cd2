"""Answers to pooling requests as JSON."""

import asyncio

import msgspec
import pytest

from protocol.token_pooling import ColbertEmbedding
from services.http import pooling_forms
from services.http.pooling_forms import Answered
from tests.support.vectors import packed


@pytest.mark.parametrize("most", [0, 1 << 20])
def test_answers_of_any_size_are_made_alike(most: int) -> None:
    found = Answered("r", "m", 5)
    for vector in ([0.5, -1.0], [2.0, 0.25]):
        found.add(packed(vector), [5, 6, 7], 1)
    assert found.size == 16
    made = pooling_forms.embedding_list(found, "float")
    response = asyncio.run(pooling_forms.answer(found, lambda: made, most))
    assert response.body == msgspec.json.encode(made)
    assert b'"embedding":[0.5,-1.0]' in response.body


def test_vectors_of_tokens_are_told_one_by_one_but_for_the_first() -> None:
    found = Answered("r", "m", 5)
    found.add(packed([0.5, -1.0, 2.0, 0.25]), [5, 6, 7], 0)
    found.add(packed([1.0, 0.0]), [5, 6], 0)
    made = pooling_forms.colbert_list(found)
    body = msgspec.json.decode(asyncio.run(pooling_forms.answer(found, lambda: made, 0)).body)
    vectors = [one["embedding"] for one in body["data"]]
    assert vectors == [[[0.5, -1.0], [2.0, 0.25]], [[1.0, 0.0]]]
    assert [*body] == ["object", "data", "model", "usage"] and body["model"] == "m"
    assert (made.usage.prompt_tokens, made.data[1].index) == (5, 1)


def test_the_document_says_that_vectors_of_tokens_are_lists_of_numbers() -> None:
    shape = msgspec.json.schema(ColbertEmbedding)["$defs"]["ColbertEmbedding"]
    numbers = {"type": "array", "items": {"type": "number"}}
    assert shape["properties"]["embedding"] == {"type": "array", "items": numbers}
