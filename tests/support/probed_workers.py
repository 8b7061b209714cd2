"""Workers in the test's process that answer probes, and stream as long as they are told."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web

from protocol.generate import INSTANCE_HEADER
from proxy.fleet.fleet import Fleet
from proxy.fleet.worker import Instance
from proxy.upstream.client import UpstreamClient

EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
SHORT_S = 1.0
PATIENT_S = 10.0
STREAMS = ("/open", "/v1/chat/completions")
OURS: dict[str, Any] = {
    "/health": {},
    "/v1/models": {"data": [{"id": "m"}]},
    "/server_info": {
        "dialect": "tokens",
        "max_num_seqs": 24,
        "block_size": 16,
        "kv_transfer_params": {"remote_port": 1, "triptych": {"compatibility": "m:bf16"}},
    },
}
THEIRS: dict[str, Any] = {"/health": {}, "/v1/models": {"data": [{"id": "m"}]}}


class Worker:
    """Answers with what stands under a path: JSON, bytes as they are, or a status. `silent` paths
    get no answer, those under /v1 only with the `key` if there is one; those of `STREAMS` are
    streams of two events, the second one once `end` is set. Every answer names the instance `name`
    if there is one.
    """

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = dict(answers)
        self.silent: set[str] = set()
        self.asked: list[str] = []
        self.key = ""
        self.name = ""
        self.end = asyncio.Event()
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path)
        if request.path in self.silent:
            await asyncio.sleep(60)
        guarded = bool(self.key) and request.path.startswith("/v1")
        if guarded and request.headers.get("authorization") != f"Bearer {self.key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        if request.path in STREAMS:
            return await self._stream(request)
        answer = self.answers.get(request.path, 404)
        if isinstance(answer, int):
            return web.json_response({"detail": "no"}, status=answer)
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        return web.Response(body=data, content_type="application/json")

    async def sign(self, _: web.Request, response: web.StreamResponse) -> None:
        if self.name:
            response.headers[INSTANCE_HEADER] = self.name

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(EVENT)
        await self.end.wait()
        await response.write(EVENT + DONE)
        return response


@contextlib.asynccontextmanager
async def serving(worker: Worker) -> AsyncIterator[Worker]:
    app = web.Application()
    app.on_response_prepare.append(worker.sign)
    app.router.add_route("*", "/{path:.*}", worker.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    worker.url = "http://{}:{}".format(*runner.addresses[0][:2])
    try:
        yield worker
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def asking(
    authorization: str = "", patience_s: float = PATIENT_S
) -> AsyncIterator[UpstreamClient]:
    """A client that probes: with little patience (`SHORT_S`) where workers are silent."""
    client = UpstreamClient(2.0, probe_timeout_s=patience_s, authorization=authorization)
    try:
        async with asyncio.timeout(120):
            yield client
    finally:
        await client.close()


def decoding(*urls: str) -> tuple[Fleet, list[Instance]]:
    """(a fleet of decode workers, they)"""
    fleet = Fleet.from_urls("", "", ",".join(urls))
    return fleet, fleet.decode
