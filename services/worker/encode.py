"""`POST /inference/v1/encode`: pictures in (msgpack, raw bytes), handles for `ec_transfer_params`
out. An item without data is answered from the cache or reported missing."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Request, Response

from protocol.generate import ENCODE_PATH, EncodeAnswer, decode_encode
from services.http.counting import counted
from services.http.openai import request_id
from services.http.streams import while_connected
from services.worker.worker import Worker


def router(worker: Worker) -> APIRouter:
    routes = APIRouter()

    @routes.post(ENCODE_PATH)
    @counted(worker.open)
    async def encode(request: Request) -> Response:
        """Encode media items; each has its own result or error in the answer."""
        async with worker.bodies.read(request) as body:
            wanted = decode_encode(body)
        if not wanted.request_id:
            wanted.request_id = request_id(request)
        outputs = await while_connected(request, worker.encode(wanted))
        return Response(msgspec.json.encode(EncodeAnswer(outputs)), media_type="application/json")

    return routes
