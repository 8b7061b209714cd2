"""Streams of the `openai` dialect that break and are not resumed, or not by everyone."""

from collections.abc import Callable
from typing import Any

import pytest

from protocol.generate import GENERATE_PATH, RENDER_PATH
from tests.support.greedy_workers import FINGERPRINT
from tests.support.listening import run
from tests.support.relay_workers import CHAT
from tests.support.resuming import HEADERS, asking, first, fleet, held_back, one_error, undisturbed
from tests.support.waiting import eventually


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_without_progress_it_is_given_up(retries: int) -> None:
    """The first worker that is lost with the request does not count as a failure."""
    body = asking()
    expected = undisturbed(body)

    async def work() -> None:
        async with fleet("DDD", "--max-retries", str(retries)) as made:
            made.workers[0].breaks = (first(body, 4), *([0] * 9))
            made.workers[1].breaks = made.workers[2].breaks = (0,) * 9
            one_error(await made.post(body), expected[:4])
            tries = retries + 1 if retries else 0
            assert made.resumed == tries == len(made.asked(GENERATE_PATH))

    run(work)


@pytest.mark.parametrize(
    "more",
    [
        {"temperature": 0.5},
        {"temperature": None},
        {"stop": ["x"]},
        {"presence_penalty": 0.1},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"response_format": {"type": "json_object"}},
        {"something": "unheard of"},
    ],
)
def test_what_would_not_be_exact_ends_with_one_error(more: dict[str, Any]) -> None:
    body = asking(**more)
    expected = undisturbed(body)

    async def work() -> None:
        async with fleet() as made:
            made.workers[0].breaks = (sum(map(len, expected[:4])),)
            one_error(await made.post(body), expected[:4])
            assert made.asked(CHAT) == [body] and not made.asked(GENERATE_PATH)
            assert made.resumed == 0

    run(work)


@pytest.mark.parametrize("resumes", [lambda n: False, lambda n: n == 0])
def test_no_other_worker_has_the_route(resumes: Callable[[int], bool]) -> None:
    body = asking()
    expected = undisturbed(body)

    async def work() -> None:
        async with fleet(resumes=resumes) as made:
            made.workers[0].breaks = (sum(map(len, expected[:4])),)
            one_error(await made.post(body), expected[:4])
            assert made.asked(CHAT) == [body]

    run(work)


def test_a_worker_that_goes_on_in_another_way_is_not_heard() -> None:
    """It would be noticed where a token that the client has had is made again."""
    body = asking()
    expected = undisturbed(body)
    seen = expected[: held_back(body)]

    async def work() -> None:
        async with fleet("DDD") as made:
            made.workers[0].breaks = (first(body, len(seen)),)
            for worker in made.workers:
                worker.shift = 1
            one_error(await made.post(body), seen)
            assert made.relayed.metric('upstream_failures_total{kind="diverged"') >= 1

    run(work)


def test_a_worker_that_reads_reasoning_is_not_asked() -> None:
    body = asking()
    expected = undisturbed(body)

    async def work() -> None:
        async with fleet() as made:
            made.workers[0].breaks = (first(body, 4),)
            made.workers[1].parses_reasoning = True
            one_error(await made.post(body), expected[:4])
            assert made.asked(RENDER_PATH) and not made.asked(GENERATE_PATH)

    run(work)


@pytest.mark.parametrize("state", ["draining", "down", "breaker"])
def test_workers_that_must_not_be_asked_are_not(state: str) -> None:
    body = asking()
    expected = undisturbed(body)

    async def work() -> None:
        async with fleet("DDD") as made:
            third = made.relayed.relay._fleet.decode[2]
            if state == "draining":
                third.draining = True
            elif state == "down":
                third.up = False
            else:
                third.breaker.failures, third.breaker.open_until = 100, 1e12
            made.relayed.relay._fleet.decode[1].fingerprint = FINGERPRINT
            for _ in range(2):
                made.workers[0].breaks = (first(body, 4),)
                made.workers[1].breaks = ()
                answers = [await made.post(body) for _ in range(2)]
                assert answers[0] == b"".join(expected)
            assert not made.workers[2].asked

    run(work)


@pytest.mark.parametrize("leave", ["client", "deadline"])
def test_a_client_that_leaves_a_resumed_stream_ends_it(leave: str) -> None:
    body = asking(max_tokens=150)

    async def work() -> None:
        async with fleet() as made:
            one, second = made.workers
            one.breaks = (first(body, 3),)
            # The whole answer takes five seconds, and what is read here about one.
            second.delay_s = 0.05 if leave == "client" else 0.5
            headers = HEADERS if leave == "client" else {**HEADERS, "x-request-timeout": "3"}
            response = await made.relayed.session.post(
                made.relayed.url + CHAT, json=body, headers=headers
            )
            for _ in range(6):
                await response.content.readuntil(b"\n\n")
            if leave == "client":
                response.close()
            else:
                assert b"deadline_exceeded" in await response.read()
            await eventually(lambda: second.left == 1)
            await eventually(lambda: made.relayed.in_flight == 0)

    run(work)
