"""Answers to pooling requests in the forms of OpenAI, vLLM, Jina and RTP-LLM."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec
from fastapi import Response
from msgspec import UNSET

from protocol.pooling_answers import (
    Class,
    ClassList,
    Embedding,
    EmbeddingList,
    Pooled,
    PooledList,
    RankedDocument,
    RankedDocuments,
    RankedText,
    RtpRankedDocument,
    RtpRankedDocuments,
    Score,
    ScoreList,
)
from protocol.pooling_requests import RerankRequest
from protocol.token_pooling import ColbertEmbedding, ColbertList, SparseEmbedding, SparseList
from services.frontend.token_weights import TokenWeights
from services.http.openai import JSON
from services.http.pooled import Answered

_INLINE_BYTES = 1 << 16  # of vectors, whose JSON takes a few milliseconds


async def answer(found: Answered, form: Callable[[], msgspec.Struct]) -> Response:
    """`form()` as JSON; large ones are made beside the event loop."""
    if found.size <= _INLINE_BYTES:
        return Response(_encoded(form()), media_type=JSON)
    return Response(await asyncio.to_thread(lambda: _encoded(form())), media_type=JSON)


def _encoded(form: msgspec.Struct) -> bytes:
    """Element by element where there are `data`: other threads have their turn between two."""
    fields = msgspec.structs.asdict(form)
    if isinstance(fields.get("data"), list):
        pieces = [msgspec.json.encode(one) for one in fields["data"]]
        fields["data"] = msgspec.Raw(b"[" + b",".join(pieces) + b"]")
    return msgspec.json.encode(fields)


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
    tokens = zip(found.inputs, found.numbers(), strict=True)
    named = [weights.by_token(ids, numbers, decoded=decoded) for ids, numbers in tokens]
    data = [SparseEmbedding(embedding=one, index=index) for index, one in enumerate(named)]
    return SparseList(data=data, model=found.model, usage=found.usage)


def colbert_list(found: Answered) -> ColbertList:
    rows = [
        array.reshape(len(ids) - 1, -1).tolist()
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
