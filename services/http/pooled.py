"""Pooling requests from body to vectors: rendered, run as any other prompt, put together."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from fastapi import Request

from protocol.errors import InternalError, InvalidRequest, from_info
from protocol.openai import ChatCompletionRequest
from protocol.pooling import PoolingParams
from protocol.pooling_requests import (
    EmbeddingRequest,
    Pair,
    PairFields,
    PoolingFields,
    TextFields,
    decode_similarity,
    inputs_of,
    numbered,
)
from protocol.token_pooling import SparseRequest, decode_sparse
from protocol.types import GenerateRequest
from services.frontend.pooling.inputs import PoolingInputs
from services.frontend.pooling.token_weights import TokenWeights
from services.frontend.render import Frontend
from services.frontend.spec import OutputSpec, RenderedRequest
from services.http.callers import caller_of, deadline_of, with_caller
from services.http.openai import Service, at_once, request_id
from services.http.pooling_forms import Answered, Array
from services.http.records import record_of
from services.http.streams import Deadline, while_connected

_INPUTS_AT_ONCE = 32  # of one request
_INLINE_PAIRS = 256  # cosines that take a millisecond
_T = TypeVar("_T")
_F = TypeVar("_F", bound=TextFields)


class Pooling:
    """Answers pooling requests by a service's own way of running prompts."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._models = service.models

    async def vectors(
        self,
        request: Request,
        decode: Callable[[bytes], tuple[_F, ChatCompletionRequest | None]],
    ) -> tuple[_F, Answered]:
        """An answer for each input."""
        wanted, found, _ = await self._vectors(request, decode)
        return wanted, found

    async def token_weights(self, request: Request) -> tuple[SparseRequest, Answered, TokenWeights]:
        """As `vectors`, with how the model's tokens are called."""
        return await self._vectors(request, decode_sparse)

    async def _vectors(
        self,
        request: Request,
        decode: Callable[[bytes], tuple[_F, ChatCompletionRequest | None]],
    ) -> tuple[_F, Answered, TokenWeights]:
        deadline = deadline_of(request.headers, self._service.timeout_s)
        async with self._service.body(request, deadline) as body:
            wanted, chat = await self._service.bodies.decoded(body, decode)
            name = request_id(request, wanted.request_id)
            frontend = self._models.of(wanted.model)
            pooling = frontend.pooling
            params = pooling.params(wanted)
            if chat is None:
                given = inputs_of(wanted)
                prompts = await self._rendered(
                    request, deadline, frontend, lambda: pooling.texts(wanted, params, given, name)
                )
            else:
                render = frontend.render_chat(
                    chat, request_id=name, caller=caller_of(request), size=len(body)
                )
                prompts = [await self._rendered_chat(request, deadline, render, params)]
        # The name may be gone once the answers are there.
        return wanted, await self._pooled(request, name, prompts, deadline), pooling.weights

    async def scores(
        self,
        request: Request,
        decode: Callable[[bytes], tuple[_T, PairFields, Sequence[Pair]]],
    ) -> tuple[_T, list[float], Answered]:
        """(what was decoded, a score for each pair, the answers behind them). A model of vectors
        scores by their cosine, as vLLM has it."""
        deadline = deadline_of(request.headers, self._service.timeout_s)
        async with self._service.body(request, deadline) as body:
            wanted, fields, pairs = await self._service.bodies.decoded(body, decode)
            frontend = self._models.of(fields.model)
            pooler = frontend.info.pooler
            by_vectors = pooler is not None and pooler.task == "embed"
            if by_vectors and fields.instruction is not None:
                raise InvalidRequest("instruction: this model takes none", param="instruction")
            name = request_id(request, fields.request_id)
            # The query stands in each of its pairs: a text is computed once.
            fields_of = _first_fields(
                [(pair.query, pair.query_field) for pair in pairs]
                + [(pair.document, pair.document_field) for pair in pairs]
            )
            prompts = await self._rendered(
                request,
                deadline,
                frontend,
                lambda: (
                    _units(frontend.pooling, fields, fields_of, name)
                    if by_vectors
                    else frontend.pooling.pairs(fields, pairs, name)
                ),
            )
        answered = await self._pooled(request, name, prompts, deadline)
        if not by_vectors:
            return wanted, [score for (score,) in answered.numbers()], answered
        of = dict(zip(fields_of, answered.arrays(), strict=True))
        return wanted, await _cosines([(of[p.query], of[p.document]) for p in pairs]), answered

    async def similarities(self, request: Request) -> tuple[list[list[float]], Answered]:
        """For each text of the left side its cosine with each of the right."""
        deadline = deadline_of(request.headers, self._service.timeout_s)
        async with self._service.body(request, deadline) as body:
            wanted = await self._service.bodies.decoded(body, decode_similarity)
            frontend = self._models.of(wanted.model)
            name = request_id(request, wanted.request_id)
            # Texts may stand on both sides.
            fields_of = _first_fields(
                numbered(wanted.left, "left") + numbered(wanted.right, "right")
            )
            prompts = await self._rendered(
                request,
                deadline,
                frontend,
                lambda: _units(frontend.pooling, wanted, fields_of, name),
            )
        answered = await self._pooled(request, name, prompts, deadline)
        of = dict(zip(fields_of, answered.arrays(), strict=True))
        width = len(wanted.right)
        flat = await _cosines([(of[a], of[b]) for a in wanted.left for b in wanted.right])
        return [flat[at : at + width] for at in range(0, len(flat), width)], answered

    async def _rendered_chat(
        self,
        request: Request,
        deadline: Deadline,
        render: Awaitable[RenderedRequest],
        params: PoolingParams,
    ) -> RenderedRequest:
        with record_of(request.scope).during("render"):
            rendered = await while_connected(request, render, deadline)
        rendered.generate.pooling = params
        return with_caller(rendered, request, deadline)

    async def _rendered(
        self,
        request: Request,
        deadline: Deadline,
        frontend: Frontend,
        render: Callable[[], Awaitable[list[GenerateRequest]]],
    ) -> list[RenderedRequest]:
        with record_of(request.scope).during("render"):
            made = await while_connected(request, render(), deadline)
        return [with_caller(_vectorized(one, frontend.name), request, deadline) for one in made]

    async def _pooled(
        self, request: Request, name: str, prompts: list[RenderedRequest], deadline: Deadline
    ) -> Answered:
        found = await while_connected(
            request, at_once(prompts, self._one, deadline, _INPUTS_AT_ONCE), deadline
        )
        first = prompts[0]
        pooler = self._models.known(first.model).info.pooler
        labels = pooler.labels if pooler is not None else ()
        answered = Answered(name, first.generate.model, int(time.time()), labels)
        for prompt, (vector, cached) in zip(prompts, found, strict=True):
            answered.add(vector, prompt.generate.token_ids, cached)
        return answered

    async def _one(self, prompt: RenderedRequest) -> tuple[bytes, int]:
        """(the vector, prompt tokens that were cached)."""
        vector, cached = b"", 0
        async with contextlib.aclosing(self._service.run(prompt)) as steps:
            async for outputs in steps:
                for output in outputs:
                    if output.error is not None:
                        raise from_info(output.error)
                    vector = output.pooled or vector
                    cached = max(cached, output.cached_tokens or 0)
        if not vector:
            raise InternalError("the engine has answered without a vector")
        return vector, cached


async def _units(
    pooling: PoolingInputs, fields: PoolingFields, fields_of: Mapping[str, str], name: str
) -> list[GenerateRequest]:
    """Requests for the vectors, of length 1, of texts that come from these fields."""
    alone = EmbeddingRequest(
        model=fields.model,
        priority=fields.priority,
        cache_salt=fields.cache_salt,
        normalize=True,
    )
    texts, places = [*fields_of], [*fields_of.values()]
    return await pooling.texts(alone, pooling.params(alone), texts, name, places)


def _first_fields(texts: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Each text once, with the field that it comes from first."""
    found: dict[str, str] = {}
    for text, where in texts:
        found.setdefault(text, where)
    return found


async def _cosines(pairs: Sequence[tuple[Array, Array]]) -> list[float]:
    """Of pairs of vectors of length 1."""
    if len(pairs) <= _INLINE_PAIRS:
        return [float(one @ other) for one, other in pairs]
    return await asyncio.to_thread(lambda: [float(one @ other) for one, other in pairs])


def _vectorized(generate: GenerateRequest, model: str) -> RenderedRequest:
    """A request whose answer has no text."""
    output = OutputSpec(
        generate.request_id, generate.model, chat=False, prompt_token_ids=generate.token_ids
    )
    return RenderedRequest(generate, {}, output, model=model)
