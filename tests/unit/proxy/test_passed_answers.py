"""Streams that are passed on are held back only as long as they say nothing of the answer."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from proxy.relay import passed_answers
from proxy.relay.passed_answers import checked_events
from proxy.upstream.sse import MAX_EVENT

PROLOGUE = b'data: {"type":"response.created"}\n\n'
FIRST = b'data: {"type":"response.output_text.delta"}\n\n'


async def checked(*pieces: bytes) -> list[bytes]:
    async def given() -> AsyncGenerator[bytes, None]:
        for piece in pieces:
            yield piece

    return [events async for events in checked_events("http://w", given())]


async def test_a_prologue_comes_with_what_follows_it() -> None:
    assert await checked(PROLOGUE, PROLOGUE, FIRST, FIRST) == [2 * PROLOGUE + FIRST, FIRST]
    assert await checked(PROLOGUE) == [PROLOGUE]


async def test_each_event_of_a_prologue_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked, find = list[bytes](), passed_answers._type_of

    def noted(data: bytes) -> Any:
        looked.append(data)
        return find(data)

    monkeypatch.setattr(passed_answers, "_type_of", noted)
    assert await checked(*[PROLOGUE] * 100, FIRST) == [100 * PROLOGUE + FIRST]
    assert len(looked) == 101


async def test_a_prologue_without_an_end_is_passed_on() -> None:
    long = b'data: {"type":"response.created","a":"' + b"x" * (MAX_EVENT // 2) + b'"}\n\n'
    assert await checked(long, long, PROLOGUE) == [2 * long, PROLOGUE]
