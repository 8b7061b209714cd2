"""Text into token ids and back over HTTP, bounded."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from protocol.generate import decode_generate
from services.frontend.render import Frontend
from services.http.tokens import MAX_BODY
from tests.support.frontend_helpers import NAME, frontend, image_part, picture, user, write_model
from tests.support.frontend_helpers import render as render_chat
from tests.support.listening import run
from tests.support.openai_server import CHAT, TEXT, Server, asking, chat


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
            turns = 0
            while not long.done():
                await asyncio.sleep(0.005)
                turns += 1
            assert (await long)[0] == 200
            assert turns > 5, "a loop that tokenizes has one turn or two"

    run(work)


def test_a_text_too_large_to_tokenize_is_refused(front: Frontend) -> None:
    async def work() -> None:
        async with asking(Server(front)) as (ask, _):
            status, answer = await ask("/tokenize", {"prompt": "x" * (MAX_BODY + 1)})
            assert (status, answer["error"]["code"]) == (413, "payload_too_large")

    run(work)


def test_a_chat_becomes_the_tokens_of_its_prompt(front: Frontend) -> None:
    expected = render_chat(front, user("Hi")).generate.token_ids

    async def work() -> None:
        async with asking(Server(front)) as (ask, _):
            wanted = {"messages": user("Hi"), "return_token_strs": True}
            status, answer = await ask("/tokenize", wanted)
            assert status == 200
            assert answer["tokens"] == expected
            assert len(answer["token_strs"]) == answer["count"] == len(answer["tokens"])
            status, body = await ask(f"{CHAT}/render", chat())
            assert status == 200 and body["sampling_params"]["max_tokens"] == 2
            request, _ = decode_generate(json.dumps(body).encode())
            assert request.token_ids == expected
            for wrong in ({}, {"prompt": "x", "messages": user("x")}):
                status, answer = await ask("/tokenize", wrong)
                assert (status, answer["error"]["param"]) == (400, "prompt")

    run(work)


def test_a_picture_counts_as_its_tokens(front: Frontend) -> None:
    turn = user("What is it?", image_part(picture(112, 84)))
    expected = list(render_chat(front, turn).generate.token_ids)

    async def work() -> None:
        async with asking(Server(front)) as (ask, _):
            status, answer = await ask("/tokenize", {"messages": turn})
            assert (status, answer["tokens"]) == (200, expected)
            pads = [t for t in expected if front.tokenizer.token(t) == "<|image_pad|>"]
            assert len(pads) > 1 and answer["count"] == len(expected)
            _, text = await ask("/tokenize", {"messages": user("What is it?")})
            assert answer["count"] == text["count"] + len(pads) + 2  # and what is around them

    run(work)


def test_prompts_are_rendered_and_not_computed(front: Frontend) -> None:
    async def work() -> None:
        server = Server(front)
        async with asking(server) as (ask, _):
            texts = ["Hello", "Ho"]
            status, bodies = await ask(f"{TEXT}/render", {"prompt": texts, "max_tokens": 2})
            assert status == 200 and not server.deadlines
            requests = [decode_generate(json.dumps(body).encode())[0] for body in bodies]
            assert [r.token_ids for r in requests] == [
                front.tokenizer.encode(text, add_special_tokens=True) for text in texts
            ]
            assert {r.sampling.max_tokens for r in requests} == {2}
            status, answer = await ask(f"{TEXT}/render", {"prompt": 5})
            assert (status, answer["error"]["param"]) == (400, "prompt")

    run(work)


def test_the_tokenizer_is_shown_where_that_is_allowed(tmp_path: Path) -> None:
    front = frontend(write_model("qwen2_5_vl", tmp_path / "m"), show_tokenizer=True)

    async def work() -> None:
        async with asking(Server(front)) as (ask, _):
            status, shown = await ask("/tokenizer_info", method="GET")
            assert status == 200 and shown["tokenizer_class"]
            assert shown["chat_template"] == front.info.templates["default"]

    run(work)


def test_a_model_is_shown_by_its_name(front: Frontend) -> None:
    async def work() -> None:
        async with asking(Server(front)) as (ask, _):
            status, card = await ask(f"/v1/models/{NAME}", method="GET")
            assert (status, card["id"], card["object"]) == (200, NAME, "model")
            status, answer = await ask("/v1/models/other/one", method="GET")
            assert (status, answer["error"]["code"]) == (404, "model_not_found")
            assert (await ask("/tokenizer_info", method="GET"))[0] == 404

    run(work)
