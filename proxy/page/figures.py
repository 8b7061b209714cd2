"""How busy each worker is, as its own /metrics says: ours, or vLLM's."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Sequence

from protocol.errors import TriptychError
from proxy.fleet.worker import Instance
from proxy.upstream.client import UpstreamClient

Figures = dict[str, float]
_EVERY_S = 1.5
_MOST = 256  # workers that are asked
_AT_ONCE = 16
_LONGEST = 2 << 20  # bytes; vLLM's own are about 100 kB
_NAMES = (
    "num_requests_running", "num_requests_waiting", "num_items_encoding", "kv_cache_usage_perc",
    "embedding_cache_bytes", "prompt_tokens", "cached_tokens", "generation_tokens",
    "mm_cache_queries", "mm_cache_hits", "mm_encoded", "prefix_cache_queries", "prefix_cache_hits",
)  # fmt: skip
# Counters have _total behind their name in the text, ours and vLLM's.
_LINE = re.compile(
    rf"^(?:triptych|vllm):({'|'.join(_NAMES)})(?:_total)?(?:\{{[^\n]*\}})? ([0-9.eE+-]+)$".encode(),
    re.MULTILINE,
)


def figures_from(text: bytes) -> Figures:
    """The figures that the page shows, by name; a figure with several series is their sum, a share
    their mean. What is no number is left out."""
    found: dict[str, list[float]] = {}
    for name, digits in _LINE.findall(text[:_LONGEST]):
        with contextlib.suppress(ValueError):
            value = float(digits)
            found.setdefault(name.decode(), []).append(value)
    return {
        name: sum(values) / len(values) if name.endswith("_perc") else sum(values)
        for name, values in found.items()
    }


class WorkerFigures:
    """The last figures of each worker. They are asked for beside everything else, at most every
    1.5 s, however many look at the page."""

    def __init__(self, client: UpstreamClient) -> None:
        self._client = client
        self._found: dict[str, Figures] = {}
        self._asked = -_EVERY_S
        self._asking = False

    def of(self, workers: Sequence[Instance]) -> dict[str, Figures]:
        """By URL, as far as they are known; newer ones are asked for if these are old."""
        now = time.monotonic()
        if not self._asking and now - self._asked >= _EVERY_S:
            self._asked, self._asking = now, True
            urls = list(dict.fromkeys(one.url for one in workers if one.up))
            self._client.beside(self._ask(urls[:_MOST]))
        return self._found

    async def _ask(self, urls: Sequence[str]) -> None:
        room = asyncio.Semaphore(_AT_ONCE)

        async def one(url: str) -> tuple[str, Figures]:
            async with room:
                try:
                    return url, figures_from(await self._client.get(f"{url}/metrics"))
                except TriptychError:
                    return url, {}

        try:
            answers = await asyncio.gather(*map(one, urls))
            # Replaced as a whole, so that workers which have left go with it.
            self._found = {url: figures for url, figures in answers if figures}
        finally:
            self._asking = False
