"""Every field of a request has a row, and the parser does what the row says."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from protocol.anthropic import MessagesRequest, decode_messages
from protocol.chat_messages import ContentPart
from protocol.errors import InvalidRequest
from protocol.openai import ChatCompletionRequest, CompletionRequest, decode_chat, decode_completion
from protocol.pooling_requests import (
    ClassifyRequest,
    EmbeddingRequest,
    RerankRequest,
    ScoreRequest,
    SimilarityRequest,
    decode_classify,
    decode_embedding,
    decode_rerank,
    decode_score,
    decode_similarity,
)
from protocol.request_fields import RequestField, Route
from protocol.request_table import ALL_FIELDS
from protocol.responses import ResponsesRequest, decode_responses
from protocol.token_pooling import ColbertRequest, SparseRequest, decode_colbert, decode_sparse

TURNS = [{"role": "user", "content": "x"}]
BODIES: dict[Route, dict[str, Any]] = {
    "chat": {"messages": TURNS},
    "completions": {"prompt": "x"},
    "responses": {"input": "x"},
    "messages": {"messages": TURNS, "max_tokens": 4},
    "embeddings": {"input": "x"},
    "classes": {"input": "x"},
    "scores": {"text_1": "x", "text_2": "y"},
    "rerank": {"query": "x", "documents": ["y"]},
    "similarity": {"left": ["x"], "right": ["y"]},
    "sparse": {"input": "x"},
    "colbert": {"input": "x"},
}
STRUCTS: dict[Route, type[msgspec.Struct]] = {
    "chat": ChatCompletionRequest,
    "completions": CompletionRequest,
    "responses": ResponsesRequest,
    "messages": MessagesRequest,
    "embeddings": EmbeddingRequest,
    "classes": ClassifyRequest,
    "scores": ScoreRequest,
    "rerank": RerankRequest,
    "similarity": SimilarityRequest,
    "sparse": SparseRequest,
    "colbert": ColbertRequest,
}
DECODERS: dict[Route, Callable[[bytes], msgspec.Struct]] = {
    "chat": decode_chat,
    "completions": decode_completion,
    "responses": decode_responses,
    "messages": decode_messages,
    "embeddings": lambda data: decode_embedding(data)[0],
    "classes": lambda data: decode_classify(data)[0],
    "scores": lambda data: decode_score(data)[0],
    "rerank": decode_rerank,
    "similarity": decode_similarity,
    "sparse": lambda data: decode_sparse(data)[0],
    "colbert": lambda data: decode_colbert(data)[0],
}


def decode(route: Route, **fields: Any) -> msgspec.Struct:
    return DECODERS[route](msgspec.json.encode({**BODIES[route], **fields}))


def of_routes(rows: tuple[RequestField, ...]) -> list[Any]:
    return [pytest.param(row, r, id=f"{row.name}-{r}") for row in rows for r in row.routes]


REFUSED = tuple(row for row in ALL_FIELDS if row.state == "refused")
HARMLESS = tuple(row for row in ALL_FIELDS if row.state == "harmless")


@pytest.mark.parametrize("route", STRUCTS)
def test_what_works_is_what_the_struct_has(route: Route) -> None:
    rows = [row.name for row in ALL_FIELDS if row.state == "works" and route in row.routes]
    assert sorted(rows) == sorted(STRUCTS[route].__struct_fields__)
    everything = [row.name for row in ALL_FIELDS if route in row.routes]
    assert len(everything) == len(set(everything))


@pytest.mark.parametrize(("row", "route"), of_routes(REFUSED))
def test_what_is_refused_is_named(row: RequestField, route: Route) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode(route, **{row.name: row.example})
    assert (caught.value.param, caught.value.code) == (row.name, "unsupported_parameter")
    assert row.does in caught.value.message
    for idle in (None, *row.neutral):
        decode(route, **{row.name: idle})


@pytest.mark.parametrize(("row", "route"), of_routes(HARMLESS))
def test_what_is_harmless_is_taken(row: RequestField, route: Route) -> None:
    decode(route, **{row.name: row.example})
    decode(route, **{row.name: None})


@pytest.mark.parametrize("route", STRUCTS)
def test_null_is_as_good_as_nothing(route: Route) -> None:
    nothing = decode(route)
    for name in STRUCTS[route].__struct_fields__:
        if name not in BODIES[route]:
            assert decode(route, **{name: None}) == nothing, name


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"temprature": 1}, "temprature", "unknown_parameter"),
        (
            {"stream": True, "stream_options": {"usage": True}},
            "stream_options.usage",
            "unknown_parameter",
        ),
        ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
        ({"n": 0}, "n", "integer_below_min_value"),
        ({"n": 1000}, "n", "integer_above_max_value"),
        ({"top_p": 2}, "top_p", "decimal_above_max_value"),
        ({"min_p": -1}, "min_p", "decimal_below_min_value"),
        ({"n": "two"}, "n", "invalid_type"),
        ({"truncation_side": "middle"}, "truncation_side", "invalid_value"),
        ({"service_tier": "best"}, "service_tier", "invalid_value"),
        # 1 is not true: a flag's neutral value does not excuse a number.
        ({"watermarking": 0}, "watermarking", "unsupported_parameter"),
    ],
)
@pytest.mark.parametrize("route", ["chat", "completions"])
def test_errors_have_openais_codes(
    route: Route, fields: dict[str, Any], param: str, code: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode(route, **fields)
    assert (caught.value.param, caught.value.code) == (param, code)
    assert param in caught.value.message and "$" not in caught.value.message


@pytest.mark.parametrize("route", ["responses", "messages"])
def test_errors_of_agents_requests_have_them_too(route: Route) -> None:
    for fields, param, code in (
        ({"temprature": 1}, "temprature", "unknown_parameter"),
        ({"top_p": 2}, "top_p", "decimal_above_max_value"),
        ({"stream": "yes"}, "stream", "invalid_type"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            decode(route, **fields)
        assert (caught.value.param, caught.value.code) == (param, code)


def test_a_missing_field_has_openais_code() -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_completion(b"{}")
    assert (caught.value.param, caught.value.code) == ("prompt", "missing_required_parameter")


def test_further_members_of_a_part_are_kept() -> None:
    part = {"type": "text", "text": "x", "source_lang_code": "cs", "others": 5}
    request = decode("chat", messages=[{"role": "user", "content": [part, "y"]}])
    assert isinstance(request, ChatCompletionRequest)
    found, text = list(request.messages[0].content or ())
    assert isinstance(found, ContentPart) and text == "y"
    assert (found.text, found.others) == ("x", {"source_lang_code": "cs", "others": 5})
