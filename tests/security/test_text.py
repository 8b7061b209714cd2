"""Texts that end a tokenizer are the client's error."""

from pathlib import Path

import pytest

from protocol.errors import InvalidRequest
from services.frontend.config import FrontendConfig
from services.frontend.render import Frontend
from tests.support.listening import run
from tests.support.openai_server import Server, asking

BLANKS = " " * 10_200_000  # beyond what the pattern of byte-level tokenizers is matched with


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
        async with asking(Server(front)) as (ask, _):
            status, answer = await ask("/tokenize", {"prompt": BLANKS})
            assert (status, answer["error"]["param"]) == (400, "prompt")
            assert (await ask("/tokenize", {"prompt": "Hello"}))[0] == 200

    run(work)
