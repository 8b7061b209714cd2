"""Answers to pooling requests in the forms of OpenAI, vLLM, Jina and RTP-LLM."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from fastapi import Response
from msgspec import UNSET
from numpy.typing import NDArray

from protocol.openai_answers import PromptTokensDetails
from protocol.pooling import unpacked
from protocol.pooling_answers import (
    Class,
    ClassList,
    Embedding,
    EmbeddingList,
    Pooled,
    PooledList,
    PoolingUsage,
    RankedDocument,
    RankedDocuments,
    RankedText,
    RtpRankedDocument,
    RtpRankedDocuments,
    Score,
    ScoreList,
    Vector,
)
from protocol.pooling_requests import RerankRequest
from protocol.token_pooling import ColbertEmbedding, ColbertList, SparseEmbedding, SparseList
from services.frontend.pooling.token_weights import TokenWeights
from services.http.openai import JSON

_INLINE_BYTES = 1 << 16  # of vectors, whose JSON takes a few milliseconds


async def answer(
    found: Answered, form: Callable[[], msgspec.Struct], inline: int = _INLINE_BYTES
) -> Response:
    """`form()` as JSON; beside the event loop if the vectors have more than `inline` bytes."""
    if found.size <= inline:
        return Response(_encoded(form()), media_type=JSON)
    return Response(await asyncio.to_thread(lambda: _encoded(form())), media_type=JSON)


def _encoded(form: msgspec.Struct) -> bytes:
    """Element by element where there are `data`: other threads have their turn between two."""
    # One call for thousands of vectors would hold the interpreter's lock for all of them.
    fields = msgspec.structs.asdict(form)
    data = fields.get("data")
    if not isinstance(data, list):
        return msgspec.json.encode(fields)
    # In JSON's texts quotes are escaped, so that this is the field.
    head, field, tail = msgspec.json.encode({**fields, "data": []}).partition(b'"data":[]')
    # Up to the bracket that opens the list; `field` has the one that closes it.
    made, encoder = bytearray(head + field[:-1]), msgspec.json.Encoder()
    for index, one in enumerate(data):
        made += b"," if index else b""
        # -1: behind what is there.
        encoder.encode_into(one, made, -1)
    made += field[-1:] + tail
    return bytes(made)


def embedding_list(found: Answered, encoding_format: str) -> EmbeddingList:
    vectors = enumerate(found.encoded(encoding_format))
    return EmbeddingList(
        id=f"embd-{found.id}",
        created=found.created,
        model=found.model,
        data=[Embedding(index=index, embedding=vector) for index, vector in vectors],
        usage=found.usage,
    )


def pooled_list(found: Answered, encoding_format: str) -> PooledList:
    vectors = enumerate(found.encoded(encoding_format))
    return PooledList(
        id=f"pool-{found.id}",
        created=found.created,
        model=found.model,
        data=[Pooled(index=index, data=vector) for index, vector in vectors],
        usage=found.usage,
    )


def sparse_list(found: Answered, weights: TokenWeights, *, decoded: bool) -> SparseList:
    """The weights that each input's tokens have above 0, by their texts if `decoded`, else ids."""
    tokens = zip(found.inputs, found.numbers(), strict=True)
    named = [weights.by_token(ids, numbers, decoded=decoded) for ids, numbers in tokens]
    data = [SparseEmbedding(embedding=one, index=index) for index, one in enumerate(named)]
    return SparseList(data=data, model=found.model, usage=found.usage)


def colbert_list(found: Answered) -> ColbertList:
    """Vectors [tokens - 1, width] of each input, as JSON that is made token by token: other threads
    have their turn between two."""
    encode = msgspec.json.Encoder().encode
    rows = [
        [msgspec.Raw(encode(row.tolist())) for row in array.reshape(len(ids) - 1, -1)]
        for ids, array in zip(found.inputs, found.arrays(), strict=True)
    ]
    data = [ColbertEmbedding(embedding=one, index=index) for index, one in enumerate(rows)]
    return ColbertList(data=data, model=found.model, usage=found.usage)


def score_list(found: Answered, scores: Sequence[float]) -> ScoreList:
    return ScoreList(
        id=f"score-{found.id}",
        created=found.created,
        model=found.model,
        data=[Score(index=index, score=value) for index, value in enumerate(scores)],
        usage=found.usage,
    )


def class_list(found: Answered) -> ClassList:
    return ClassList(
        id=f"classify-{found.id}",
        created=found.created,
        model=found.model,
        data=[_class(index, probs, found.labels) for index, probs in enumerate(found.numbers())],
        usage=found.usage,
    )


def _class(index: int, probs: list[float], labels: Sequence[str]) -> Class:
    likeliest = max(range(len(probs)), key=probs.__getitem__)
    return Class(index=index, label=labels[likeliest], probs=probs, num_classes=len(probs))


def ranked(found: Answered, wanted: RerankRequest, scores: Sequence[float]) -> RankedDocuments:
    """`scores`: of each document, in the request's order."""
    texts = wanted.texts
    results = [
        RankedDocument(
            index=index,
            relevance_score=scores[index],
            document=RankedText(texts[index]) if wanted.return_documents else UNSET,
        )
        for index in wanted.order(scores)
    ]
    return RankedDocuments(
        id=f"rerank-{found.id}", model=found.model, usage=found.usage, results=results
    )


def rtp_ranked(
    found: Answered, wanted: RerankRequest, scores: Sequence[float]
) -> RtpRankedDocuments:
    """As `ranked`."""
    texts = wanted.texts
    results = [
        RtpRankedDocument(
            index=index,
            document=texts[index] if wanted.return_documents else None,
            relevance_score=scores[index],
        )
        for index in wanted.order(scores)
    ]
    total = found.usage.total_tokens
    return RtpRankedDocuments(results=results, total_tokens=total, model=found.model)


Array = NDArray[np.float64]


class Answered:
    """What the inputs of one request were answered, in their order. `labels`: of the model's
    classes, in the order of each answer's numbers."""

    def __init__(
        self, request_id: str, model: str, created: int, labels: Sequence[str] = ()
    ) -> None:
        self.id, self.model, self.created = request_id, model, created
        self.labels = labels
        self.vectors: list[bytes] = []
        self.inputs: list[list[int]] = []  # token ids of each
        self._prompt = self._cached = 0

    def add(self, vector: bytes, token_ids: list[int], cached_tokens: int) -> None:
        """The answer to the next input: float32 numbers, little-endian."""
        self.vectors.append(vector)
        self.inputs.append(token_ids)
        self._prompt += len(token_ids)
        self._cached += cached_tokens

    @property
    def size(self) -> int:
        """Bytes of all vectors."""
        return sum(map(len, self.vectors))

    @property
    def usage(self) -> PoolingUsage:
        details = PromptTokensDetails(self._cached) if self._cached else None
        return PoolingUsage(self._prompt, self._prompt, details)

    def numbers(self) -> list[list[float]]:
        """As `arrays`, in Python's numbers."""
        return [unpacked(vector) for vector in self.vectors]

    def arrays(self) -> list[Array]:
        """float64 of each input: [width], or for each token a weight or a vector, flat."""
        return [np.frombuffer(vector, "<f4").astype(np.float64) for vector in self.vectors]

    def encoded(self, encoding_format: str) -> list[Vector]:
        """Of each input its numbers, or if `base64` is asked for their float32 bytes in that."""
        if encoding_format == "base64":
            return [base64.b64encode(vector).decode() for vector in self.vectors]
        return [*self.numbers()]
