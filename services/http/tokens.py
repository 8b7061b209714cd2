"""`/v1/models`, `/tokenize` and `/detokenize`: the model and its tokenizer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import msgspec
from fastapi import APIRouter, Request, Response

from protocol.bounds import Int64
from protocol.decoding import accepted
from protocol.errors import InvalidRequest
from protocol.openai_answers import encode
from protocol.vocabulary import check_token_ids
from services.frontend.prompt import OFFLOAD_CHARS
from services.frontend.render import Frontend
from services.http.bodies import Bodies
from services.http.counting import Admitted, counted
from services.http.openai import JSON

MAX_BODY = 16 << 20
_AT_ONCE = 2
_T = TypeVar("_T")


class _Tokenize(msgspec.Struct):
    prompt: str
    add_special_tokens: bool = True


class _Tokenized(msgspec.Struct):
    tokens: list[int]
    count: int
    max_model_len: int


class _Detokenize(msgspec.Struct):
    tokens: list[Int64]


class _Detokenized(msgspec.Struct):
    prompt: str


def informing(frontend: Frontend, admitted: Admitted, bodies: Bodies) -> APIRouter:
    """The model and its tokenizer. A long text is nobody else's wait: it leaves the event loop, and
    few do at once."""
    routes = APIRouter()
    room = asyncio.Semaphore(_AT_ONCE)

    async def answered(work: Callable[[], msgspec.Struct], size: int) -> Response:
        if size <= OFFLOAD_CHARS:
            return Response(msgspec.json.encode(work()), media_type=JSON)
        async with room:
            body = await asyncio.to_thread(lambda: msgspec.json.encode(work()))
        return Response(body, media_type=JSON)

    @routes.get("/v1/models")
    async def models() -> Response:
        return Response(encode(frontend.models()), media_type=JSON)

    @routes.post("/tokenize")
    @counted(admitted)
    async def tokenize(request: Request) -> Response:
        """Token ids of a text."""
        async with bodies.read(request, MAX_BODY) as body:
            wanted = _decoded(body, _Tokenize)
            return await answered(lambda: _tokenized(frontend, wanted), len(wanted.prompt))

    @routes.post("/detokenize")
    @counted(admitted)
    async def detokenize(request: Request) -> Response:
        """Text of token ids."""
        async with bodies.read(request, MAX_BODY) as body:
            wanted = _decoded(body, _Detokenize)
            return await answered(lambda: _detokenized(frontend, wanted), len(wanted.tokens))

    return routes


def _tokenized(frontend: Frontend, wanted: _Tokenize) -> _Tokenized:
    try:
        ids = frontend.tokenizer.encode(wanted.prompt, add_special_tokens=wanted.add_special_tokens)
    except InvalidRequest as error:
        error.param = "prompt"
        raise
    return _Tokenized(ids, len(ids), frontend.info.max_model_len)


def _detokenized(frontend: Frontend, wanted: _Detokenize) -> _Detokenized:
    tokens = wanted.tokens
    most = max(frontend.info.vocab_size, frontend.tokenizer.size)
    check_token_ids(tokens, "tokens", most)
    return _Detokenized(frontend.tokenizer.decode(tokens))


def _decoded(body: bytes, kind: type[_T]) -> _T:
    return accepted(lambda data: msgspec.json.decode(data, type=kind), body)
