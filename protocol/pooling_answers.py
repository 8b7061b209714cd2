"""Answers with vectors and scores as types, in OpenAI's, vLLM's and Jina's forms."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from protocol.openai_answers import PromptTokensDetails

Vector = list[float] | str  # base64 of float32 numbers if that is asked for


class PoolingUsage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None


class Embedding(msgspec.Struct, kw_only=True):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: Vector


class EmbeddingList(msgspec.Struct, kw_only=True):
    id: str  # of the request
    object: Literal["list"] = "list"  # always "list"
    created: int  # seconds since 1970
    model: str  # as the client named it
    data: list[Embedding]  # an entry for each input, in order
    usage: PoolingUsage  # tokens of the inputs


class Pooled(msgspec.Struct, kw_only=True):
    object: Literal["pooling"] = "pooling"
    index: int
    data: Vector


class PooledList(msgspec.Struct, kw_only=True):
    id: str  # of the request
    object: Literal["list"] = "list"  # always "list"
    created: int  # seconds since 1970
    model: str  # as the client named it
    data: list[Pooled]  # an entry for each input, in order
    usage: PoolingUsage  # tokens of the inputs


class Score(msgspec.Struct, kw_only=True):
    object: Literal["score"] = "score"
    index: int
    score: float


class ScoreList(msgspec.Struct, kw_only=True):
    id: str  # of the request
    object: Literal["list"] = "list"  # always "list"
    created: int  # seconds since 1970
    model: str  # as the client named it
    data: list[Score]  # an entry for each input, in order
    usage: PoolingUsage  # tokens of the inputs


class RankedText(msgspec.Struct):
    text: str


class RankedDocument(msgspec.Struct, kw_only=True):
    """`index` is the document's place in the request."""

    index: int
    relevance_score: float
    document: RankedText | UnsetType = UNSET


class RankedDocuments(msgspec.Struct, kw_only=True):
    id: str
    model: str
    usage: PoolingUsage
    results: list[RankedDocument]


class Class(msgspec.Struct, kw_only=True):
    """`label` is the likeliest; `probs` has all, in the order of the model's labels."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassList(msgspec.Struct, kw_only=True):
    id: str  # of the request
    object: Literal["list"] = "list"  # always "list"
    created: int  # seconds since 1970
    model: str  # as the client named it
    data: list[Class]  # an entry for each input, in order
    usage: PoolingUsage  # tokens of the inputs


class RtpRankedDocument(msgspec.Struct, kw_only=True):
    index: int
    document: str | None
    relevance_score: float


class RtpRankedDocuments(msgspec.Struct, kw_only=True):
    """RTP-LLM's form, which is Voyage's."""

    results: list[RtpRankedDocument]
    total_tokens: int
    model: str


class RtpClasses(msgspec.Struct, kw_only=True):
    """RTP-LLM's form: for each input the probability of each label."""

    object: Literal["list"] = "list"
    score: list[list[float]]


class Similarity(msgspec.Struct, kw_only=True):
    """RTP-LLM's form: for each text of the left side its cosine with each of the right."""

    model: str
    similarity: list[list[float]]
