"""Messages and responses that are passed on: placed as chats are, by what their prompts are."""

import asyncio
import json
from typing import Any

import pytest

from tests.support.live_masters import running
from tests.support.live_placing import Placing
from tests.support.relay_workers import (
    CHAT,
    Asked,
    Relayed,
    Worker,
    data_url,
    good,
    pictures,
    relaying,
)
from tests.support.waiting import eventually

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
LONG = "You are a patient assistant who looks at pictures of shapes. " * 40


def message(*turns: str, **more: Any) -> dict[str, Any]:
    """Of a conversation whose turns these are."""
    roles = ("user", "assistant")
    said = [{"role": roles[i % 2], "content": text} for i, text in enumerate(turns)]
    return {"model": "m", "system": LONG, "max_tokens": 7, "messages": said, **more}


def response(*turns: str, **more: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    said = [{"role": roles[i % 2], "content": text} for i, text in enumerate(turns)]
    given: Any = turns[0] if len(turns) == 1 else said
    return {"model": "m", "instructions": LONG, "max_output_tokens": 9, "input": given, **more}


def picture_message(name: str) -> dict[str, Any]:
    """With the picture that `data_url(name)` is."""
    kind, data = data_url(name).removeprefix("data:").split(";base64,")
    block = {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}
    return {**message("x"), "messages": [{"role": "user", "content": [block]}]}


def holder(relay: Relayed, text: str) -> int:
    """The number of the worker that was asked last with this text."""
    at = [i for i, worker in enumerate(relay.workers["decode"])
          for asked in worker.asked if text in json.dumps(asked.body)]  # fmt: skip
    return at[-1]


@pytest.mark.parametrize(("path", "form"), [(MESSAGES, message), (RESPONSES, response)])
async def test_the_second_turn_goes_to_the_worker_that_has_the_first(path: str, form: Any) -> None:
    async with running() as ((master,), link, _):
        placing = Placing(master, link, "openai")
        async with relaying("DD", planning=placing.plan) as relay, placing.told():
            firsts = [f"Conversation {number}. " * 60 for number in range(8)]
            both = await asyncio.gather(*(relay.post(form(first), path=path) for first in firsts))
            assert [status for status, _ in both] == [200] * 8
            await placing.over()
            places = [holder(relay, first) for first in firsts]
            assert set(places) == {0, 1}
            for number, first in enumerate(firsts):
                again = form(first, "Well.", f"And turn two of {number}?")
                assert (await relay.post(again, path=path))[0] == 200
                await placing.over()
            assert [holder(relay, f"two of {number}?") for number in range(8)] == places


async def test_a_master_hears_how_long_the_answer_may_be() -> None:
    async with running() as ((master,), link, _):
        placing = Placing(master, link, "openai")
        async with relaying("PD", planning=placing.plan) as relay, placing.told():
            bodies = {MESSAGES: message("Hi"), RESPONSES: response("Hi"), "/v1/embeddings": {}}
            for path, body in bodies.items():
                assert (await relay.post({"model": "m", **body}, path=path))[0] == 200
            needs, plans = placing.planner.needs, placing.planner.plans
            assert [need.max_tokens for need in needs] == [7, 9, 1]
            assert [plan.prefill for plan in plans] == [None] * 3, "one worker does it all"
            assert not relay.workers["prefill"][0].asked


async def test_a_picture_that_a_chat_and_a_message_bring_at_once_is_encoded_once() -> None:
    release = asyncio.Event()

    async def slow(worker: Worker, asked: Asked, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        await good(worker, asked, writer)

    async with relaying("ED") as relay:
        (encoder,), (decode,) = relay.workers["encode"], relay.workers["decode"]
        encoder.script = [slow, slow]
        bodies = {CHAT: pictures(data_url("a")), MESSAGES: picture_message("a")}
        asking = [asyncio.create_task(relay.post(body, path=path)) for path, body in bodies.items()]
        flights = relay.gateway.encoding._flights
        await eventually(lambda: [one.waiters for one in flights.values()] == [2])
        release.set()
        assert [status for status, _ in await asyncio.gather(*asking)] == [200, 200]
        assert len(encoder.asked) == 1
        assert all("ec_transfer_params" in asked.body for asked in decode.asked)


async def test_a_messages_picture_goes_to_the_encoder_that_the_master_names_for_it() -> None:
    """And that has it already, if a chat brought it."""
    async with running() as ((master,), link, _):
        placing = Placing(master, link, "openai")
        async with relaying("EED", planning=placing.plan) as relay, placing.told():
            for name in "abcdef":
                assert (await relay.post(pictures(data_url(name))))[0] == 200
                await placing.over()
                assert (await relay.post(picture_message(name), path=MESSAGES))[0] == 200
                await placing.over()
                chat, passed = placing.planner.plans[-2:]
                assert passed.encoders == chat.encoders and len(passed.encoders) == 1
            asked = [len(worker.asked) for worker in relay.workers["encode"]]
            names = [worker.url for worker in relay.workers["encode"]]
            plans = placing.planner.plans
            planned = [one.url for plan in plans for one in plan.encoders.values()]
            assert asked == [planned.count(name) for name in names]
