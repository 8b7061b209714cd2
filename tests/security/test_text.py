"""Texts that end a tokenizer are the client's error."""

import contextlib
from pathlib import Path

import aiohttp
import pytest
from fastapi import FastAPI

from protocol.errors import InvalidRequest
from services.frontend.config import FrontendConfig
from services.frontend.models import Models
from services.frontend.render import Frontend
from services.http import errors
from services.http.bodies import Bodies
from services.http.listener import Listener
from services.http.tokens import informing
from tests.support.listening import listening, run

BLANKS = " " * 15_000_000  # beyond what the pattern of byte-level tokenizers is matched with


@pytest.fixture(scope="module")
def front() -> Frontend:
    model = Path(__file__).parents[2] / "models" / "demo"
    return Frontend.load(FrontendConfig(model=model, served_model_names=("demo",)))


def test_megabytes_of_blanks(front: Frontend) -> None:
    for encode in (front.tokenizer.encode, front.tokenizer.encode_with_offsets):
        with pytest.raises(InvalidRequest):
            encode(BLANKS)
    assert front.tokenizer.encode("Hello")


def test_what_cannot_be_tokenized_is_named(front: Frontend) -> None:
    async def work() -> None:
        app = FastAPI()
        app.include_router(
            informing(Models([front]), contextlib.nullcontext, Bodies(1 << 25, 1 << 25))
        )
        errors.install(app, lambda error: None)
        async with listening(app, Listener) as address, aiohttp.ClientSession() as session:
            url = f"http://{address[0]}:{address[1]}/tokenize"
            async with session.post(url, json={"prompt": BLANKS}) as response:
                answer = await response.json()
                assert (response.status, answer["error"]["param"]) == (400, "prompt")
            async with session.post(url, json={"prompt": "Hello"}) as response:
                assert response.status == 200

    run(work)
