"""`POST /inference/v1/encode`: pictures and clips in (msgpack, raw bytes), handles for
`ec_transfer_params` out. An item without data is answered from the cache or reported missing."""

from __future__ import annotations

import asyncio

import msgspec
from fastapi import APIRouter, Request, Response

from protocol.errors import InvalidRequest
from protocol.generate import ENCODE_PATH, decode_encode
from protocol.generate_answers import EncodeAnswer
from protocol.types import EncodeItem, EncodeRequest
from services.frontend.render import Frontend
from services.http.bodies import counted
from services.http.openai import request_id
from services.http.records import record_of
from services.http.streams import while_connected
from services.worker.worker import Worker

_INLINE_BYTES = 1 << 16  # hashing more leaves the event loop


def router(worker: Worker) -> APIRouter:
    routes = APIRouter()

    @routes.post(ENCODE_PATH)
    # Not `admitted`: a worker that drains still hands out the embeddings that it has.
    @counted(worker.open)
    async def encode(request: Request) -> Response:
        """Encode media items; each has its own result or error in the answer."""
        async with worker.bodies.read(request) as body:
            wanted = await worker.bodies.decoded(body, decode_encode)
        await _check_names(worker.frontend, wanted)
        if not wanted.request_id:
            wanted.request_id = request_id(request)
        record = record_of(request.scope)
        outputs = await while_connected(request, worker.encode(wanted, record))
        return Response(msgspec.json.encode(EncodeAnswer(outputs)), media_type="application/json")

    return routes


async def _check_names(frontend: Frontend, request: EncodeRequest) -> None:
    """`InvalidRequest` if bytes come under a name that is not theirs: all clients' requests with
    the picture of that name would be answered from what they show."""
    size = sum(len(item.data) for item in request.items if item.data is not None)
    if size > _INLINE_BYTES:
        await asyncio.to_thread(_compare, frontend, request)
    else:
        _compare(frontend, request)


def _compare(frontend: Frontend, request: EncodeRequest) -> None:
    for number, item in enumerate(request.items):
        if item.data is not None and _name(frontend, item, item.data) != item.mm_hash:
            raise InvalidRequest(
                f"items[{number}].mm_hash: '{item.mm_hash[:64]}' is not the name of these bytes for"
                f" this worker's model, weights and media processor",
                param=f"items[{number}].mm_hash",
                code="mm_hash_mismatch",
            )


def _name(frontend: Frontend, item: EncodeItem, data: bytes) -> str:
    return frontend.name_of(data, item.pixels, item.modality, item.frames)
