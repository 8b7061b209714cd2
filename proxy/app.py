"""The proxy's HTTP application."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse

from protocol.errors import InvalidRequest, RequestAborted, TriptychError
from protocol.openai_answers import ModelCard, ModelList, encode
from proxy import chat
from proxy.gateway import Gateway
from services.http import errors
from services.http.server import version


def create_app(gateway: Gateway) -> FastAPI:
    """The application; `gateway` is its only state."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
        probing = gateway.fleet.probe(gateway.client, gateway.config.probe_interval)
        task = asyncio.create_task(probing)
        yield
        task.cancel()

    app = FastAPI(title="Triptych proxy", version=version(), lifespan=lifespan)
    app.include_router(chat.router(gateway))
    app.include_router(_status(gateway))
    app.include_router(_tokens(gateway))

    def observe(error: TriptychError) -> None:
        if isinstance(error, RequestAborted):
            gateway.metrics.aborted.inc()
        else:
            gateway.metrics.errors.labels(error.code).inc()

    errors.install(app, observe)
    app.add_middleware(errors.RequestIdHeader)
    return app


def _status(gateway: Gateway) -> APIRouter:
    routes = APIRouter()
    started = int(time.time())

    @routes.get("/live")
    async def live() -> Response:
        return Response()

    @routes.get("/health")
    async def health() -> Response:
        """200 if every stage has a worker that is up; the body tells each worker's state."""
        fleet = gateway.fleet
        stages = {"encode": fleet.encode, "prefill": fleet.prefill, "decode": fleet.decode}
        able = all(any(i.up for i in stage) for stage in stages.values() if stage)
        workers = {
            role: {instance.url: "up" if instance.up else "down" for instance in stage}
            for role, stage in stages.items()
        }
        return JSONResponse({"proxy": "up", **workers}, status_code=200 if able else 503)

    @routes.get("/v1/models")
    async def models() -> Response:
        card = ModelCard(
            id=gateway.frontend.config.names[0],
            created=started,
            root=str(gateway.frontend.config.model),
            max_model_len=gateway.frontend.info.max_model_len,
        )
        return Response(encode(ModelList([card])), media_type="application/json")

    @routes.get("/version")
    async def show_version() -> dict[str, str]:
        return {"version": version()}

    @routes.get("/metrics")
    async def metrics() -> Response:
        return Response(gateway.metrics.render(), media_type="text/plain; version=0.0.4")

    return routes


class _Tokenize(msgspec.Struct):
    prompt: str
    add_special_tokens: bool = True


class _Detokenize(msgspec.Struct):
    tokens: list[int]


def _tokens(gateway: Gateway) -> APIRouter:
    routes = APIRouter()
    tokenizer = gateway.frontend.tokenizer

    @routes.post("/tokenize")
    async def tokenize(request: Request) -> dict[str, Any]:
        """Token ids of a text."""
        wanted = _decode(await request.body(), _Tokenize)
        ids = tokenizer.encode(wanted.prompt, add_special_tokens=wanted.add_special_tokens)
        limit = gateway.frontend.info.max_model_len
        return {"tokens": ids, "count": len(ids), "max_model_len": limit}

    @routes.post("/detokenize")
    async def detokenize(request: Request) -> dict[str, str]:
        """Text of token ids."""
        wanted = _decode(await request.body(), _Detokenize)
        return {"prompt": tokenizer.decode(wanted.tokens)}

    return routes


def _decode(data: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise InvalidRequest(str(error)) from None
