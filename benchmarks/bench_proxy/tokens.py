"""What the `tokens` dialect costs the proxy per step, in CPU, and what it saves."""

from __future__ import annotations

import asyncio
import base64
import io
import statistics
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from PIL import Image

from protocol.keys import mm_hash
from protocol.openai import decode_chat
from protocol.types import FinishReason, RequestOutput
from services.frontend.answers.answering import Answering
from services.frontend.options import FrontendOptions
from services.frontend.render import Frontend
from services.frontend.spec import RenderedRequest

STEPS = 64
_WORDS = "What is in this picture, and how many of them are there? "


@dataclass(frozen=True)
class Step:
    """CPU µs of one step for one request, the median of many."""

    name: str
    micros: float


@dataclass(frozen=True)
class TokensCost:
    """`once`: the proxy renders, hashes and detokenizes. `twice`: two workers render the request,
    and one of them detokenizes."""

    steps: list[Step]
    once: float
    twice: float


def measure(model: Path, seconds: float) -> TokensCost:
    """About so many seconds in all."""
    return asyncio.run(_measure(model, seconds / 5))


async def _measure(model: Path, seconds: float) -> TokensCost:
    frontend = Frontend.load(FrontendOptions(model=str(model)).to_config())
    try:
        picture = _picture(800, 600)
        text, media = _body([]), _body([picture])

        async def render(body: bytes) -> RenderedRequest:
            return await frontend.render_chat(decode_chat(body), request_id="r")

        async def hashed() -> None:
            mm_hash(picture, modality="image", processor={}, model="m", revision="r")

        rendered = await render(media)
        text_us = await _micros(lambda: render(text), seconds)
        media_us = await _micros(lambda: render(media), seconds)
        hash_us = await _micros(hashed, seconds / 2)
        out_us = await _micros(lambda: _detokenize(frontend, rendered), seconds)
    finally:
        await frontend.close()
    steps = [
        Step("render text", text_us),
        Step(f"render with a picture of {len(picture) // 1000} kB, hashed", media_us),
        Step("of that, hash", hash_us),
        Step("detokenize and encode, per token", out_us / STEPS),
    ]
    return TokensCost(steps, media_us + out_us, 2 * media_us + out_us)


async def _micros(work: Callable[[], Awaitable[object]], seconds: float) -> float:
    """CPU µs of this process for one call, the median of batches."""
    batches: list[float] = []
    until = time.monotonic() + seconds
    await work()
    while time.monotonic() < until or len(batches) < 3:
        start = time.process_time()
        for _ in range(10):
            await work()
        batches.append((time.process_time() - start) / 10 * 1e6)
    return statistics.median(batches)


async def _detokenize(frontend: Frontend, rendered: RenderedRequest) -> bytes:
    """A stream of `STEPS` tokens as the client gets it."""
    ids = rendered.generate.token_ids[:STEPS] or [1]

    async def steps() -> AsyncGenerator[list[RequestOutput], None]:
        for number in range(1, STEPS):
            ended: FinishReason | None = "length" if number == STEPS - 1 else None
            yield [RequestOutput("r", 0, [ids[number % len(ids)]], None, ended)]

    answering = Answering(rendered.output, frontend.tokenizer)
    first = [RequestOutput("r", 0, [ids[0]])]
    return b"".join([event async for event in answering.events(first, steps())])


def _body(pictures: list[bytes]) -> bytes:
    parts: list[dict[str, object]] = [{"type": "text", "text": _WORDS * 4}]
    for data in pictures:
        url = "data:image/png;base64," + base64.b64encode(data).decode()
        parts.append({"type": "image_url", "image_url": {"url": url}})
    message = {"role": "user", "content": parts}
    return msgspec.json.encode({"messages": [message], "stream": True, "max_tokens": STEPS})


def _picture(width: int, height: int) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).resize((width, height)).save(buffer, "PNG")
    return buffer.getvalue()
