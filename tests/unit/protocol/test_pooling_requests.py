"""Bodies of requests for vectors and scores: what they may be, and which field is at fault."""

import json
from typing import Any

import pytest

from protocol.errors import InvalidRequest
from protocol.generate import decode_generate, encode_generate
from protocol.pooling import PoolingParams, unpacked
from protocol.pooling_requests import (
    Pair,
    decode_embedding,
    decode_rerank,
    decode_score,
    decode_similarity,
    inputs_of,
)
from protocol.types import GenerateRequest, SamplingParams
from tests.support.vectors import packed


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


@pytest.mark.parametrize(
    ("given", "inputs"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_the_four_forms_of_an_input(given: Any, inputs: list[Any]) -> None:
    request, chat = decode_embedding(body(input=given))
    assert (inputs_of(request), chat) == (inputs, None)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": ["a", [1]]}, "input"),
        ({"input": ["a", 1]}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({}, "input"),
        ({"input": "a", "messages": []}, "input"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "encoding_format": "bytes"}, "encoding_format"),
        ({"input": "a", "embed_dtype": "float16"}, "embed_dtype"),
        ({"input": "a", "stream": True}, "stream"),
        ({"messages": [{"role": 1}]}, "messages[0].role"),
    ],
)
def test_a_wrong_embedding_request_is_named(fields: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        inputs_of(decode_embedding(body(**fields))[0])
    assert caught.value.param == param


def test_a_chat_is_embedded_without_an_answers_beginning() -> None:
    messages = [{"role": "user", "content": "Hi"}]
    _, chat = decode_embedding(body(messages=messages, model="m", dimensions=8))
    assert chat is not None and chat.model == "m" and not chat.add_generation_prompt
    _, open_ended = decode_embedding(body(messages=messages, add_generation_prompt=True))
    assert open_ended is not None and open_ended.add_generation_prompt


@pytest.mark.parametrize("names", [("text_1", "text_2"), ("queries", "documents"),
                                   ("data_1", "data_2")])  # fmt: skip
def test_the_sides_of_a_score_have_three_names(names: tuple[str, str]) -> None:
    first, second = names

    def decoded(one: Any, other: Any) -> list[Pair]:
        return decode_score(body(**{first: one, second: other}))[1]

    def pairs(one: Any, other: Any) -> list[tuple[str, str]]:
        return [pair[:2] for pair in decoded(one, other)]

    assert pairs("a", "b") == [("a", "b")]
    assert pairs("a", ["b", "c"]) == [("a", "b"), ("a", "c")]
    assert pairs(["a", "b"], ["c", "d"]) == [("a", "c"), ("b", "d")]
    assert decoded("a", "b") == [Pair("a", "b", first, second)]
    assert decoded("a", ["b", "c"])[1] == Pair("a", "c", first, f"{second}[1]")
    assert decoded(["a", "b"], ["c", "d"])[1] == Pair("b", "d", f"{first}[1]", f"{second}[1]")
    for wrong in ((["a", "b"], "c"), (["a", "b"], ["c", "d", "e"]), ([], "c")):
        with pytest.raises(InvalidRequest) as caught:
            pairs(*wrong)
        assert caught.value.param == first


def test_a_side_that_is_missing_or_given_twice_is_named() -> None:
    for fields in ({"text_1": "a"}, {"text_1": "a", "text_2": "b", "documents": "c"}):
        with pytest.raises(InvalidRequest) as caught:
            decode_score(body(**fields))
        assert caught.value.param == "text_2"


def test_documents_are_texts_or_objects() -> None:
    request = decode_rerank(body(query="q", documents=["a", {"text": "b"}], top_n=1))
    assert request.texts == ["a", "b"] and request.return_documents
    for fields, param in (
        ({"documents": []}, "documents"),
        ({"documents": [{"title": "a"}]}, "documents[0].text"),
        ({"documents": ["a"], "top_n": -1}, "top_n"),
        ({"documents": ["a"], "max_tokens_per_doc": 5}, "max_tokens_per_doc"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            decode_rerank(body(query="q", **fields))
        assert caught.value.param == param


def test_what_is_wanted_travels_with_the_call() -> None:
    params = PoolingParams("embed", 8, False)
    request = GenerateRequest("r", [5], SamplingParams(max_tokens=1), pooling=params)
    assert decode_generate(encode_generate(request, stream=False))[0].pooling == params
    text = GenerateRequest("r", [5], SamplingParams(max_tokens=1))
    assert b"pooling" not in encode_generate(text, stream=False)


def test_vectors_are_packed_as_little_endian_floats() -> None:
    assert packed([1.0, -2.0]) == b"\x00\x00\x80\x3f\x00\x00\x00\xc0"
    assert unpacked(packed([0.5, 0.25])) == [0.5, 0.25]


def test_a_table_of_similarities_is_bounded() -> None:
    body = {"model": "m", "left": ["a"] * 128, "right": ["b"] * 128}
    assert len(decode_similarity(json.dumps(body).encode()).left) == 128
    with pytest.raises(InvalidRequest, match="16512 pairs, the most is 16384") as refused:
        decode_similarity(json.dumps({**body, "right": ["b"] * 129}).encode())
    assert refused.value.param == "right"
