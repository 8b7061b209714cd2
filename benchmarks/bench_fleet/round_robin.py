"""A proxy that takes workers in turn, as vLLM's disaggregated encode/prefill/decode example does.

Every item goes to the encoder at its place in the request, items of one encoder in one call; then
prefill, then decode, each with the next worker in turn. An item is named by a hash of its URL; what
the encoders report of it goes to prefill and decode verbatim, and the item's bytes do not. Without
prefill workers, those that decode prefill too. There is no queue, no retry, no cache of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import hashlib
import itertools
import json
import sys
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import aiohttp
import uvloop
from aiohttp import web

_CHAT = "/v1/chat/completions"
_MAX_BODY = 64 << 20
_NO_KV = {
    "do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None,
    "remote_block_ids": None, "remote_host": None, "remote_port": None,
}  # fmt: skip


class RoundRobin:
    def __init__(
        self, encode: Sequence[str], prefill: Sequence[str], decode: Sequence[str]
    ) -> None:
        self._encode = encode
        self._prefill = itertools.cycle(prefill) if prefill else None
        self._decode = itertools.cycle(decode)
        self._session: aiohttp.ClientSession | None = None

    async def session(self, app: web.Application) -> AsyncGenerator[None, None]:
        """While the application runs."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
        )
        yield
        await self._session.close()

    async def health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        try:
            parts = _items(body)
            entries = await self._encoded(body, parts)
            for part in parts:
                _refer(part, entries[part["uuid"]])
            body["ec_transfer_params"] = entries
            if self._prefill is not None:
                first = {**_single(body), "kv_transfer_params": _NO_KV}
                answer = await self._post(next(self._prefill), first)
                body["kv_transfer_params"] = answer["kv_transfer_params"]
            return await self._streamed(request, next(self._decode), body)
        except (aiohttp.ClientError, KeyError, ValueError) as error:
            return web.json_response({"error": {"message": str(error)}}, status=502)

    async def _encoded(self, body: dict[str, Any], parts: list[dict[str, Any]]) -> dict[str, Any]:
        """The entries of all items, by name."""
        groups: dict[str, list[dict[str, Any]]] = {}
        for number, part in enumerate(parts):
            groups.setdefault(self._encode[number % len(self._encode)], []).append(part)
        calls = [
            self._post(url, {**_single(body), "messages": [{"role": "user", "content": group}]})
            for url, group in groups.items()
        ]
        entries: dict[str, Any] = {}
        for answer in await asyncio.gather(*calls):
            entries |= answer["ec_transfer_params"]
        return entries

    async def _post(self, url: str, body: dict[str, Any]) -> dict[str, Any]:
        assert self._session is not None
        async with self._session.post(url + _CHAT, json=body) as response:
            response.raise_for_status()
            found: dict[str, Any] = await response.json()
            return found

    async def _streamed(
        self, request: web.Request, url: str, body: dict[str, Any]
    ) -> web.StreamResponse:
        assert self._session is not None
        async with self._session.post(url + _CHAT, json=body) as upstream:
            upstream.raise_for_status()
            answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await answer.prepare(request)
            async for piece in upstream.content.iter_any():
                await answer.write(piece)
            return answer


def _items(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The media parts, each with its name."""
    contents = [m["content"] for m in body["messages"] if isinstance(m["content"], list)]
    parts = [part for content in contents for part in content if part["type"] == "image_url"]
    for part in parts:
        url = part["image_url"]["url"]
        part.setdefault("uuid", hashlib.sha256(url.encode()).hexdigest())
    return [*parts]


def _refer(part: dict[str, Any], entry: dict[str, Any]) -> None:
    """The item by its name and metadata, without its bytes."""
    del part["image_url"]
    part["type"], part["image_embeds"] = "image_embeds", entry["metadata"]


def _single(body: dict[str, Any]) -> dict[str, Any]:
    """For one token, in one piece."""
    found = copy.copy(body)
    found.pop("stream_options", None)
    found.pop("min_tokens", None)
    return {**found, "stream": False, "max_tokens": 1}


async def serve(proxy: RoundRobin, port: int) -> None:
    """Until cancelled; says where it listens."""
    app = web.Application(client_max_size=_MAX_BODY)
    app.cleanup_ctx.append(proxy.session)
    app.router.add_get("/health", proxy.health)
    app.router.add_post(_CHAT, proxy.chat)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.bench_fleet.round_robin", allow_abbrev=False)
    parser.add_argument("--port", type=int, required=True)
    for role in ("encode", "prefill", "decode"):
        parser.add_argument(f"--{role}", required=True, help="URLs, comma-separated")
    given = parser.parse_args(argv)
    given_urls = (getattr(given, role).split(",") for role in ("encode", "prefill", "decode"))
    urls = [[url for url in some if url] for some in given_urls]
    uvloop.run(serve(RoundRobin(*urls), given.port))
    return 0


if __name__ == "__main__":
    sys.exit(main())
