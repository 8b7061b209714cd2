"""Text into token ids and back over HTTP, bounded."""

import asyncio
import json
import time
from typing import Any

import pytest

from services.frontend.render import Frontend
from services.http.tokens import MAX_BODY
from tests.support.listening import run
from tests.support.openai_server import Server, asking


@pytest.mark.parametrize("ids", [[-1], [2**32], [2**70], [10**6], [1, 2, -(2**40)], [1.5], ["a"]])
def test_token_ids_out_of_range_are_named(front: Frontend, ids: list[Any]) -> None:
    async def work() -> None:
        async with asking(Server(front)) as (ask, _):
            status, answer = await ask("/detokenize", {"tokens": ids})
            assert status == 400 and "tokens" in json.dumps(answer["error"])

    run(work)


def test_text_there_and_back(front: Frontend) -> None:
    async def work() -> None:
        async with asking(Server(front)) as (ask, _):
            for text in ("Hello, world", "Hello " * 10_000):
                status, answer = await ask("/tokenize", {"prompt": text})
                assert status == 200 and answer["count"] == len(answer["tokens"])
                assert answer["max_model_len"] == front.info.max_model_len
                assert answer["tokens"] == front.tokenizer.encode(text, add_special_tokens=True)
                again = await ask("/detokenize", {"tokens": answer["tokens"]})
                assert again == (200, {"prompt": text})

    run(work)


def test_a_long_text_does_not_stop_the_others(front: Frontend) -> None:
    async def work() -> None:
        async with asking(Server(front, room=100)) as (ask, _):
            long = asyncio.ensure_future(ask("/tokenize", {"prompt": "Hello, world " * 80_000}))
            await asyncio.sleep(0.05)
            longest, turns, begun = 0.0, 0, time.monotonic()
            while not long.done():
                start = time.monotonic()
                await asyncio.sleep(0.005)
                longest, turns = max(longest, time.monotonic() - start), turns + 1
            assert (await long)[0] == 200
            assert turns > 10 and longest < (time.monotonic() - begun) / 2

    run(work)


def test_a_text_too_large_to_tokenize_is_refused(front: Frontend) -> None:
    async def work() -> None:
        async with asking(Server(front)) as (ask, _):
            status, answer = await ask("/tokenize", {"prompt": "x" * (MAX_BODY + 1)})
            assert (status, answer["error"]["code"]) == (413, "payload_too_large")

    run(work)
