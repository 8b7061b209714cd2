"""Requests for what a model says of each token, as RTP-LLM has them for BGE-M3."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from protocol.errors import InvalidRequest
from protocol.pooling_answers import PoolingUsage
from protocol.pooling_fields import POOLING_FIELDS
from protocol.pooling_requests import TextFields
from protocol.request_fields import RequestParser


class SparseRequest(TextFields, kw_only=True):
    """A weight for each token. `return_decoded`: tokens as text, not as ids."""

    return_decoded: bool = True


class ColbertRequest(TextFields, kw_only=True):
    """A vector for each token."""


TokenRequest: TypeAlias = SparseRequest | ColbertRequest


class SparseEmbedding(msgspec.Struct, kw_only=True):
    """Tokens that weigh anything, each with its largest weight."""

    object: Literal["sparse_embedding"] = "sparse_embedding"
    embedding: dict[str, float]
    index: int


class SparseList(msgspec.Struct, kw_only=True):
    """`data`: one for each input, in order; each names tokens with weights above 0."""

    object: Literal["list"] = "list"
    data: list[SparseEmbedding]
    model: str
    usage: PoolingUsage


# A vector as JSON: Python's numbers of a long text's vectors would take 270 MB together.
JsonVector: TypeAlias = Annotated[
    msgspec.Raw,
    msgspec.Meta(extra_json_schema={"type": "array", "items": {"type": "number"}}),
]


class ColbertEmbedding(msgspec.Struct, kw_only=True):
    """`embedding`: [tokens - 1, width], a vector of length 1 for each token but the first."""

    object: Literal["colbert_embedding"] = "colbert_embedding"
    embedding: list[JsonVector]
    index: int


class ColbertList(msgspec.Struct, kw_only=True):
    """`data`: one for each input, in order, with vectors [tokens - 1, width]."""

    object: Literal["list"] = "list"
    data: list[ColbertEmbedding]
    model: str
    usage: PoolingUsage


_SPARSE = RequestParser.of(SparseRequest, POOLING_FIELDS, "sparse")
_COLBERT = RequestParser.of(ColbertRequest, POOLING_FIELDS, "colbert")
SPARSE_BODY, COLBERT_BODY = _SPARSE.described(), _COLBERT.described()
"""Bodies of the two routes as /openapi.json describes them."""


def decode_sparse(data: bytes) -> tuple[SparseRequest, None]:
    """The request in a JSON body; `InvalidRequest` names the field at fault."""
    request = _SPARSE.parsed(data)
    _check_input(request)
    return request, None


def decode_colbert(data: bytes) -> tuple[ColbertRequest, None]:
    """As `decode_sparse`."""
    request = _COLBERT.parsed(data)
    _check_input(request)
    return request, None


def _check_input(request: TextFields) -> None:
    if request.input is None:
        raise InvalidRequest("input must be given", param="input")
