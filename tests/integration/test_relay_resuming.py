"""Streams of the `openai` dialect that break, resumed through `/inference/v1/generate`."""

import json
from typing import Any

import pytest

from protocol.generate import GENERATE_PATH, RENDER_PATH
from tests.support.greedy_workers import FINGERPRINT, FIRST_HALF, PENALTY, prompt_of, steps
from tests.support.listening import run
from tests.support.relay_workers import CHAT, HURRIED
from tests.support.resuming import CASES, USAGE, asking, first, fleet, places, undisturbed
from tests.support.thinned import diagonal

MORE: dict[str, dict[str, Any]] = {
    "plain": {}, "usage": {"stream_options": USAGE}, "ids": {"return_token_ids": True},
}  # fmt: skip


@pytest.mark.parametrize(("content", "named"), diagonal(CASES, [*MORE]))
def test_no_client_sees_where_a_stream_broke(content: str, named: str) -> None:
    body = asking(content, max_tokens=16, **MORE[named])
    expected = undisturbed(body)

    async def work() -> None:
        async with fleet() as made:
            one = made.workers[0]
            whole = [await made.post(body) for _ in made.workers]  # tells fingerprints too
            assert whole == [b"".join(undisturbed(body, created)) for created in (1, 2)]
            for place in places(undisturbed({**body, "return_token_ids": True})):
                one.breaks = (place,)
                answer = await made.post(body)
                assert answer == b"".join(expected), place
                assert (await made.post(body)) == b"".join(undisturbed(body, 2))
                assert not one.breaks
            assert made.resumed == len(made.asked(GENERATE_PATH)) > 10
            assert not any(asked["return_token_ids"] is False for asked in made.asked(CHAT))
            for asked in made.asked(RENDER_PATH):
                assert asked == body
            assert made.relayed.in_flight == 0

    run(work)


def test_cases_hold_characters_back_and_end_in_both_ways() -> None:
    """What the other tests rely on."""
    bodies = [asking(content, max_tokens=16) for content in CASES]
    params = {"max_tokens": 16, "repetition_penalty": PENALTY}
    made = [list(steps(prompt_of(body), params)) for body in bodies]
    assert {ended[-1].finish for ended in made} == {"stop", "length"}
    assert all(any(FIRST_HALF in step.ids for step in each) for each in made)
    assert [FIRST_HALF in each[0].ids for each in made] == [True, False, False]
    assert [FIRST_HALF in each[-1].ids for each in made] == [False, True, False]


@pytest.mark.parametrize("ending", ["drop", "end", "mark", "garbage", "error", "abort", "hang"])
def test_however_it_breaks(ending: str) -> None:
    body = asking(stream_options=USAGE)
    expected = undisturbed(body)

    async def work() -> None:
        async with fleet("DD", *(HURRIED if ending == "hang" else ())) as made:
            made.relayed.relay._fleet.decode[1].fingerprint = FINGERPRINT
            made.workers[0].breaks = (first(body, 5),)
            made.workers[0].ending = ending
            assert await made.post(body) == b"".join(expected)
            (generate,) = made.asked(GENERATE_PATH)
            sure = len(generate["token_ids"]) - len(prompt_of(body))
            assert generate["sampling_params"]["max_tokens"] == 12 - sure
            assert made.resumed == 1 and made.relayed.metric("upstream_failures_total") == 1

    run(work)


@pytest.mark.parametrize("per_step", [(1, 3), (3, 1), (3, 2)])
def test_tokens_that_come_together(per_step: tuple[int, int]) -> None:
    """Where one of several may hold back a character, they are made again; the client sees the same
    text, in any chunks."""
    body = asking(stream_options=USAGE, return_token_ids=True)
    expected = undisturbed(body, per_step=per_step[0])

    async def work() -> None:
        async with fleet() as made:
            one, other = made.workers
            one.per_step, other.per_step = per_step
            for place in range(1, len(expected)):
                one.breaks = (sum(map(len, expected[:place])),)
                answer = await made.post(body)
                await made.post(body)
                assert content_of(answer) == content_of(b"".join(expected)), place

    run(work)


def content_of(answer: bytes) -> tuple[str, list[int], list[Any]]:
    """Text, token ids, and the other events that end the stream."""
    text, ids, rest = "", [], []
    for event in answer.split(b"\n\ndata: ")[1:]:
        data = event.strip()
        chunk = None if data == b"[DONE]" else json.loads(data)
        if chunk is None or not chunk.get("choices"):
            rest.append(chunk and chunk.get("usage", chunk))
            continue
        (choice,) = chunk["choices"]
        text += choice["delta"]["content"]
        ids += choice["token_ids"]
        rest += [choice["finish_reason"]] if choice["finish_reason"] else []
    return text, ids, rest


def test_streams_that_break_again_and_again() -> None:
    """Any number of times, as long as there is something new each time."""
    body = asking(max_tokens=16)
    expected = undisturbed(body)

    async def work() -> None:
        async with fleet("DDD", "--max-retries", "1") as made:
            for instance in made.relayed.relay._fleet.decode:
                instance.fingerprint = FINGERPRINT
            made.workers[0].breaks = (first(body, 3), *([400] * 9))
            made.workers[1].breaks = made.workers[2].breaks = (400,) * 9
            assert await made.post(body) == b"".join(expected)
            assert made.resumed >= 4

    run(work)


def test_kv_of_prefill_is_not_needed() -> None:
    body = asking()
    expected = undisturbed(body)

    async def work() -> None:
        async with fleet("PDD") as made:
            made.relayed.relay._fleet.decode[1].fingerprint = FINGERPRINT
            made.workers[0].breaks = (first(body, 4),)
            assert await made.post(body) == b"".join(expected)
            (chat,) = made.asked(CHAT)
            assert chat["kv_transfer_params"]["remote_request_id"] == "held"
            assert chat["return_token_ids"] is True
            assert not any("kv_transfer_params" in a for a in made.asked(GENERATE_PATH))

    run(work)
