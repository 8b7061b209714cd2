"""Text streams while pictures arrive: how even their tokens come, and how many of all."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import random
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import aiohttp
import numpy as np
from PIL import Image

from benchmarks.bench_engine.contenders import SERVED
from benchmarks.bench_engine.loads import PIXELS, SEED, SHOWN

STREAMS = 3
PICTURE_EVERY_S = 1.5
STREAM_TOKENS, PICTURE_TOKENS = 128, 16
_UNCOUNTED_S = 4.0  # until all streams run


@dataclass(frozen=True)
class Gaps:
    """ms between tokens of the text streams, and output tokens/s of everything."""

    p50_ms: float
    p95_ms: float
    p99_ms: float
    tokens_s: float


@dataclass
class Seen:
    """Of one turn, what came after `begin`: ms between tokens of the streams, and tokens of all."""

    begin: float
    gaps: list[float] = field(default_factory=list)
    tokens: int = 0

    def add(self, at: float, before: float | None) -> None:
        if at >= self.begin:
            self.tokens += 1
            if before is not None:
                self.gaps.append(1e3 * (at - before))


async def run(url: str, seconds: float, turn: int) -> Seen:
    """Three streams, each a request after the other, and a new picture every 1.5 s. Each `turn` has
    texts and pictures of its own, which no cache holds yet."""
    seen = Seen(time.monotonic() + _UNCOUNTED_S)
    end = seen.begin + seconds
    timeout = aiohttp.ClientTimeout(total=None, sock_read=120.0)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        chat = f"{url}/v1/chat/completions"
        tasks = [
            asyncio.create_task(_texts(session, chat, f"{SEED} {turn} {n}", end, seen))
            for n in range(STREAMS)
        ]
        tasks.append(asyncio.create_task(_pictures(session, chat, (SEED, turn), end, seen)))
        done, left = await asyncio.wait(tasks, timeout=end - time.monotonic())
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        for task in done:
            task.result()
    return seen


def gaps(turns: Sequence[Seen], seconds: float) -> Gaps:
    """Of all turns, each of so many seconds."""
    found = [gap for seen in turns for gap in seen.gaps]
    p50, p95, p99 = (float(np.percentile(found, percent)) for percent in (50, 95, 99))
    return Gaps(p50, p95, p99, sum(seen.tokens for seen in turns) / (seconds * len(turns)))


async def _texts(
    session: aiohttp.ClientSession, url: str, seed: str, end: float, seen: Seen
) -> None:
    words = random.Random(seed)
    while time.monotonic() < end:
        text = " ".join(words.choices(("red", "blue", "circle", "square", "left", "big"), k=24))
        before: float | None = None
        async for at in _tokens(session, url, text, STREAM_TOKENS):
            seen.add(at, before)
            before = at


async def _pictures(
    session: aiohttp.ClientSession, url: str, seed: tuple[int, int], end: float, seen: Seen
) -> None:
    random_pixels = np.random.default_rng(seed)
    async with asyncio.TaskGroup() as group:
        while time.monotonic() < end:
            pixels = random_pixels.integers(0, 256, (PIXELS, PIXELS, 3), np.uint8)
            group.create_task(_picture(session, url, _data_url(pixels), seen))
            await asyncio.sleep(PICTURE_EVERY_S)


async def _picture(session: aiohttp.ClientSession, url: str, picture: str, seen: Seen) -> None:
    content = [
        {"type": "image_url", "image_url": {"url": picture}},
        {"type": "text", "text": "What is it?"},
    ]
    async for at in _tokens(session, url, content, PICTURE_TOKENS):
        seen.add(at, None)


async def _tokens(
    session: aiohttp.ClientSession, url: str, content: str | Sequence[object], tokens: int
) -> AsyncIterator[float]:
    """When each came, those without text too: half of a character has none yet."""
    body = {
        "model": SERVED, "stream": True, "ignore_eos": True, "max_tokens": tokens,
        "temperature": 0, "messages": [{"role": "user", "content": content}], **SHOWN,
    }  # fmt: skip
    async with session.post(url, json=body) as response:
        if response.status != 200:
            raise RuntimeError(f"HTTP {response.status}: {(await response.text())[:300]}")
        async for line in response.content:
            choices = json.loads(line[6:]).get("choices") if line.startswith(b"data: {") else None
            if choices:
                for _ in choices[0].get("token_ids") or ():
                    yield time.monotonic()


def _data_url(pixels: np.ndarray) -> str:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
