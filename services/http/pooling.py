"""Routes that answer vectors and scores: embeddings, scores of pairs, documents by rank."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request, Response

from protocol.pooling import (
    CLASSIFY_PATH,
    COLBERT_PATH,
    EMBEDDINGS_PATHS,
    POOLING_PATH,
    RERANK_PATHS,
    RTP_CLASSIFY_PATH,
    RTP_RERANK_PATH,
    SCORE_PATHS,
    SIMILARITY_PATH,
    SPARSE_PATH,
)
from protocol.pooling_answers import RtpClasses, Similarity
from protocol.pooling_requests import (
    Pair,
    PairFields,
    RerankRequest,
    decode_classify,
    decode_embedding,
    decode_rerank,
    decode_score,
)
from protocol.token_pooling import decode_colbert
from services.http.bodies import counted
from services.http.openai import Service
from services.http.pooled import Pooling
from services.http.pooling_forms import (
    answer,
    class_list,
    colbert_list,
    embedding_list,
    pooled_list,
    ranked,
    rtp_ranked,
    score_list,
    sparse_list,
)

_INLINE_WEIGHTS = 1 << 12  # bytes: texts of a thousand tokens take a few milliseconds to decode


def pooling(service: Service) -> APIRouter:
    """Embeddings, scores and ranks. A model that generates text refuses them all by its name."""
    routes, work = APIRouter(), Pooling(service)

    @counted(service.admitted)
    async def embeddings(request: Request) -> Response:
        """OpenAI embeddings, of texts, token ids, or a chat that may hold pictures."""
        wanted, found = await work.vectors(request, decode_embedding)
        return await answer(found, lambda: embedding_list(found, wanted.encoding_format))

    @counted(service.admitted)
    async def pooled(request: Request) -> Response:
        """As `/v1/embeddings`, in vLLM's form."""
        wanted, found = await work.vectors(request, decode_embedding)
        return await answer(found, lambda: pooled_list(found, wanted.encoding_format))

    @counted(service.admitted)
    async def score(request: Request) -> Response:
        """How well the texts of each pair fit each other, in vLLM's form."""
        _, scores, found = await work.scores(request, _score_of)
        return await answer(found, lambda: score_list(found, scores))

    @counted(service.admitted)
    async def rerank(request: Request) -> Response:
        """Documents by how well they answer a query, in Jina's and Cohere's form."""
        wanted, scores, found = await work.scores(request, _rerank_of)
        return await answer(found, lambda: ranked(found, wanted, scores))

    @counted(service.admitted)
    async def classify(request: Request) -> Response:
        """Classes of texts, with the probability of each, in vLLM's form."""
        _, found = await work.vectors(request, decode_classify)
        return await answer(found, lambda: class_list(found))

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
        wanted, scores, found = await work.scores(request, _rerank_of)
        return await answer(found, lambda: rtp_ranked(found, wanted, scores))

    @routes.post(RTP_CLASSIFY_PATH)
    @counted(service.admitted)
    async def classifier(request: Request) -> Response:
        """As `/classify`, in RTP-LLM's form."""
        _, found = await work.vectors(request, decode_classify)
        return await answer(found, lambda: RtpClasses(score=found.numbers()))

    @routes.post(SPARSE_PATH)
    @counted(service.admitted)
    async def sparse(request: Request) -> Response:
        """A weight for each token of a text, in RTP-LLM's form."""
        wanted, found, weights = await work.token_weights(request)
        decoded = wanted.return_decoded
        form = partial(sparse_list, found, weights, decoded=decoded)
        return await answer(found, form, _INLINE_WEIGHTS)

    @routes.post(COLBERT_PATH)
    @counted(service.admitted)
    async def colbert(request: Request) -> Response:
        """A vector for each token of a text but the first, in RTP-LLM's form."""
        _, found = await work.vectors(request, decode_colbert)
        return await answer(found, lambda: colbert_list(found))

    @routes.post(SIMILARITY_PATH)
    @counted(service.admitted)
    async def similarity(request: Request) -> Response:
        """How near texts are to each other by the cosine of their vectors, in RTP-LLM's form."""
        near, found = await work.similarities(request)
        return await answer(found, lambda: Similarity(model=found.model, similarity=near))

    return routes


def _score_of(body: bytes) -> tuple[None, PairFields, list[Pair]]:
    fields, pairs = decode_score(body)
    return None, fields, pairs


def _rerank_of(body: bytes) -> tuple[RerankRequest, PairFields, list[Pair]]:
    wanted = decode_rerank(body)
    return wanted, wanted, wanted.pairs
