"""Routes that answer vectors and scores: embeddings, scores of pairs, documents by rank."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Request, Response
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
    RtpClasses,
    RtpRankedDocument,
    RtpRankedDocuments,
    Score,
    ScoreList,
    Similarity,
)
from protocol.pooling_requests import (
    CLASSIFY_PATH,
    EMBEDDINGS_PATHS,
    POOLING_PATH,
    RERANK_PATHS,
    RTP_CLASSIFY_PATH,
    RTP_RERANK_PATH,
    SCORE_PATHS,
    SIMILARITY_PATH,
    PairFields,
    RerankRequest,
    decode_classify,
    decode_embedding,
    decode_rerank,
    decode_score,
)
from services.http.counting import counted
from services.http.openai import JSON, Service
from services.http.pooled import Pairs, Pooling


def pooling(service: Service) -> APIRouter:
    """Embeddings, scores and ranks. A model that generates text refuses them all by its name."""
    routes, work = APIRouter(), Pooling(service)

    @counted(service.admitted)
    async def embeddings(request: Request) -> Response:
        """OpenAI embeddings, of texts, token ids, or a chat that may hold pictures."""
        wanted, found = await work.vectors(request, decode_embedding)
        data = [
            Embedding(index=index, embedding=vector)
            for index, vector in enumerate(found.encoded(wanted.encoding_format))
        ]
        return _answer(
            EmbeddingList(
                id=f"embd-{found.id}",
                created=found.created,
                model=found.model,
                data=data,
                usage=found.usage,
            )
        )

    @counted(service.admitted)
    async def pooled(request: Request) -> Response:
        """As `/v1/embeddings`, in vLLM's form."""
        wanted, found = await work.vectors(request, decode_embedding)
        data = [
            Pooled(index=index, data=vector)
            for index, vector in enumerate(found.encoded(wanted.encoding_format))
        ]
        return _answer(
            PooledList(
                id=f"pool-{found.id}",
                created=found.created,
                model=found.model,
                data=data,
                usage=found.usage,
            )
        )

    @counted(service.admitted)
    async def score(request: Request) -> Response:
        """How well the texts of each pair fit each other, in vLLM's form."""
        _, scores, found = await work.scores(request, _score_of, "text_2")
        data = [Score(index=index, score=value) for index, value in enumerate(scores)]
        return _answer(
            ScoreList(
                id=f"score-{found.id}",
                created=found.created,
                model=found.model,
                data=data,
                usage=found.usage,
            )
        )

    @counted(service.admitted)
    async def rerank(request: Request) -> Response:
        """Documents by how well they answer a query, in Jina's and Cohere's form."""
        wanted, scores, found = await work.scores(request, _rerank_of, "documents")
        texts = wanted.texts
        results = [
            RankedDocument(
                index=index,
                relevance_score=scores[index],
                document=RankedText(texts[index]) if wanted.return_documents else UNSET,
            )
            for index in wanted.order(scores)
        ]
        return _answer(
            RankedDocuments(
                id=f"rerank-{found.id}", model=found.model, usage=found.usage, results=results
            )
        )

    @counted(service.admitted)
    async def classify(request: Request) -> Response:
        """Classes of texts, with the probability of each, in vLLM's form."""
        _, found = await work.vectors(request, decode_classify)
        pooler = service.frontend.info.pooler
        labels = pooler.labels if pooler is not None else ()
        data = [
            Class(
                index=index,
                label=labels[max(range(len(probs)), key=probs.__getitem__)],
                probs=probs,
                num_classes=len(probs),
            )
            for index, probs in enumerate(found.numbers())
        ]
        return _answer(
            ClassList(
                id=f"classify-{found.id}",
                created=found.created,
                model=found.model,
                data=data,
                usage=found.usage,
            )
        )

    for paths, endpoint in (
        (EMBEDDINGS_PATHS, embeddings),
        ((POOLING_PATH,), pooled),
        (SCORE_PATHS, score),
        (RERANK_PATHS, rerank),
        ((CLASSIFY_PATH,), classify),
    ):
        for path in paths:
            routes.add_api_route(path, endpoint, methods=["POST"])
    routes.include_router(_as_rtp(service, work))
    return routes


def _as_rtp(service: Service, work: Pooling) -> APIRouter:
    """Routes at which RTP-LLM answers in a form of its own."""
    routes = APIRouter()

    @routes.post(RTP_RERANK_PATH)
    @counted(service.admitted)
    async def reranker(request: Request) -> Response:
        """As `/rerank`, in RTP-LLM's form."""
        wanted, scores, found = await work.scores(request, _rerank_of, "documents")
        texts = wanted.texts
        results = [
            RtpRankedDocument(
                index=index,
                document=texts[index] if wanted.return_documents else None,
                relevance_score=scores[index],
            )
            for index in wanted.order(scores)
        ]
        tokens = found.usage.total_tokens
        return _answer(RtpRankedDocuments(results=results, total_tokens=tokens, model=found.model))

    @routes.post(RTP_CLASSIFY_PATH)
    @counted(service.admitted)
    async def classifier(request: Request) -> Response:
        """As `/classify`, in RTP-LLM's form."""
        _, found = await work.vectors(request, decode_classify)
        return _answer(RtpClasses(score=found.numbers()))

    @routes.post(SIMILARITY_PATH)
    @counted(service.admitted)
    async def similarity(request: Request) -> Response:
        """How near texts are to each other by the cosine of their vectors, in RTP-LLM's form."""
        near, found = await work.similarities(request)
        return _answer(Similarity(model=found.model, similarity=near))

    return routes


def _answer(answer: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(answer), media_type=JSON)


def _score_of(body: bytes) -> tuple[None, PairFields, Pairs]:
    fields, pairs = decode_score(body)
    return None, fields, pairs


def _rerank_of(body: bytes) -> tuple[RerankRequest, PairFields, Pairs]:
    wanted = decode_rerank(body)
    return wanted, wanted, [(wanted.query, text) for text in wanted.texts]
