"""Sends a trace open-loop, and measures every answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp

from benchmarks.bench_fleet.trace import Ask

_JSON = {"content-type": "application/json"}


@dataclass(frozen=True)
class Answer:
    """Seconds from when the request was due. `status` 0: no answer, or one that broke."""

    at: float
    status: int
    first_s: float = 0.0
    whole_s: float = 0.0
    events: int = 0

    @property
    def token_s(self) -> float:
        return (self.whole_s - self.first_s) / max(1, self.events - 1)

    def good(self, ttft_s: float, tpot_s: float) -> bool:
        done = self.status == 200 and self.events > 1
        return done and self.first_s <= ttft_s and self.token_s <= tpot_s


async def run(url: str, asks: Sequence[Ask], drain_s: float) -> list[Answer]:
    """One for each, in their order; those under way so long after the last was sent are cut."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        begin = time.monotonic()
        tasks = [asyncio.create_task(_ask(session, url, ask, begin)) for ask in asks]
        _, hanging = await asyncio.wait(tasks, timeout=asks[-1].at + drain_s)
        for task in hanging:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return [
            Answer(ask.at, 0) if task.cancelled() else task.result()
            for ask, task in zip(asks, tasks, strict=True)
        ]


async def _ask(session: aiohttp.ClientSession, url: str, ask: Ask, begin: float) -> Answer:
    due = begin + ask.at
    await asyncio.sleep(max(0.0, due - time.monotonic()))
    first = last = 0.0
    events = 0
    try:
        chat = f"{url}/v1/chat/completions"
        async with session.post(chat, data=ask.body, headers=_JSON) as response:
            if response.status != 200:
                await response.read()
                return Answer(ask.at, response.status)
            async for line in response.content:
                if _carries_text(line):
                    last = time.monotonic()
                    first = first or last
                    events += 1
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return Answer(ask.at, 0)
    return Answer(ask.at, 200 if events else 0, first - due, last - due, events)


def _carries_text(line: bytes) -> bool:
    return line.startswith(b"data: {") and b'"content":"' in line and b'"content":""' not in line
