"""Requests for vectors: what they hold on to while their inputs are computed."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import aiohttp
import msgspec
from fastapi import FastAPI

from protocol.errors import ModelNotFound
from protocol.types import RequestOutput
from services.frontend.families import load_family
from services.frontend.models import Models
from services.frontend.render import Frontend
from services.frontend.spec import RenderedRequest
from services.http import errors
from services.http.bodies import Bodies
from services.http.listener import Listener
from services.http.openai import Service
from services.http.pooling import pooling
from tests.support.frontend_helpers import NAME, frontend, write_model
from tests.support.listening import listening
from tests.support.vectors import packed


def weighing(path: Path) -> Frontend:
    """Of a model that says it has weights of tokens."""
    plain = frontend(write_model("qwen3", path), task="embed")
    assert plain.info.pooler is not None
    pooler = msgspec.structs.replace(plain.info.pooler, forms=("token_weights",))
    info = replace(plain.info, pooler=pooler)
    return Frontend(plain.config, info, plain.tokenizer, load_family(info, plain.tokenizer))


class Leaving(Models):
    """Knows no name any more once a request is computed."""

    gone = False

    def of(self, name: str | None) -> Frontend:
        if self.gone:
            raise ModelNotFound(f"model: '{name}' is not served here", param="model")
        return super().of(name)


def test_a_name_that_goes_while_an_answer_is_made_loses_nothing(tmp_path: Path) -> None:
    models = Leaving([weighing(tmp_path)])

    async def compute(rendered: RenderedRequest) -> AsyncGenerator[list[RequestOutput], None]:
        models.gone = True
        generate = rendered.generate
        weights = packed([0.5] * len(generate.token_ids))
        yield [RequestOutput(generate.request_id, finish_reason="stop", pooled=weights)]

    async def ask() -> tuple[int, bytes]:
        app, bodies = FastAPI(), Bodies(1 << 20, 64 << 20)
        app.include_router(pooling(Service(models, compute, lambda *_: None, nullcontext, bodies)))
        errors.install(app, lambda error: None)
        body = {"model": NAME, "input": "a b"}
        async with listening(app, Listener) as (host, port), aiohttp.ClientSession() as session:
            url = f"http://{host}:{port}/v1/embeddings/sparse"
            async with session.post(url, json=body) as response:
                return response.status, await response.read()

    status, answer = asyncio.run(ask())
    assert status == 200, answer
    (one,) = msgspec.json.decode(answer)["data"]
    assert set(one["embedding"].values()) == {0.5}
