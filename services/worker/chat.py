"""`/v1/chat/completions` and `/v1/completions` of a worker, with vLLM's EPD handshake.

An encode worker encodes the request's media and answers with `ec_transfer_params`; a prefill
worker asked for `do_remote_decode` answers one token and `kv_transfer_params`; a decode worker
takes them. Media come as the picture itself, or as a reference by mm_hash.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any

from fastapi import APIRouter, Request, Response

from protocol.encoder_cache import item_metadata, named_entry
from protocol.errors import InvalidRequest, from_info
from protocol.generate import encode_item
from protocol.openai import CHAT_PATH
from protocol.openai_answers import encode
from protocol.types import EncodeOutput, EncodeRequest, MMItem, RequestOutput
from services.frontend.answers.answering import Answering
from services.frontend.models import Models
from services.frontend.spec import RenderedRequest
from services.http.anthropic import messaging
from services.http.bodies import counted
from services.http.openai import JSON, Service, generating
from services.http.pooling import pooling
from services.http.responses import responding
from services.http.rtp_frontend import rtp_frontend
from services.http.streams import EventStream, while_connected
from services.worker.worker import Worker


def router(worker: Worker) -> APIRouter:
    """Chat, completions and responses of a worker that generates; vectors and scores of another."""
    service = service_of(worker)
    routes = generating(service)
    routes.include_router(messaging(service))
    routes.include_router(responding(service, worker.config.response_store_bytes))
    routes.include_router(rtp_frontend(service))
    routes.include_router(pooling(service))
    return routes


def encoder_router(worker: Worker) -> APIRouter:
    """Chat of a worker that only encodes: the text does not matter, the answer has none."""
    routes = APIRouter()
    service = service_of(worker)

    @routes.post(CHAT_PATH)
    @counted(worker.admitted)
    async def chat(request: Request) -> Response:
        rendered = await service.rendered_chat(request)
        if not rendered.media:
            raise InvalidRequest("messages: there is no media item to encode", param="messages")
        _check_names(rendered)
        params = await while_connected(request, _encode(worker, rendered))
        answering = Answering(rendered.output, worker.frontend.tokenizer, ec_transfer_params=params)
        if rendered.output.stream:
            return EventStream(answering.events(_nothing(rendered), _steps_of()))
        whole = await answering.whole(_steps_of(_nothing(rendered)))
        return Response(encode(whole), media_type=JSON)

    return routes


def service_of(worker: Worker) -> Service:
    """What answers requests by the worker's own engine."""
    return Service(
        models=Models([worker.frontend]),
        run=lambda rendered: _run(worker, rendered),
        stop_choice=lambda rendered, index: worker.stop_choice(rendered.generate.request_id, index),
        admitted=worker.admitted,
        bodies=worker.bodies,
        texts=worker.texts,
    )


async def _run(
    worker: Worker, rendered: RenderedRequest
) -> AsyncGenerator[list[RequestOutput], None]:
    """Generate; a worker that has the vision part encodes the request's media itself."""
    if rendered.media and "vision" in worker.role.parts:
        await _encode(worker, rendered)
    # Closed with this generator: else the engine would go on until that one is collected.
    async with contextlib.aclosing(worker.generate(rendered.generate, rendered.record)) as steps:
        async for outputs in steps:
            yield outputs


async def _encode(worker: Worker, rendered: RenderedRequest) -> dict[str, Any]:
    """Encode the media that came with the request; their `ec_transfer_params`."""
    items = {item.mm_hash: item for item in rendered.generate.mm_items}
    wanted = [encode_item(items[name], data) for name, data in rendered.media.items()]
    request = EncodeRequest(rendered.generate.request_id, wanted, rendered.generate.deadline_s)
    encoded = await worker.encode(request, rendered.record)
    outputs = {output.mm_hash: output for output in encoded}
    return _entries(rendered, outputs)


def _entries(rendered: RenderedRequest, outputs: Mapping[str, EncodeOutput]) -> dict[str, Any]:
    """One entry for each name that the client has for an item, as vLLM's encoders report them: a
    proxy that asked several encoders merges their answers by name."""
    entries: dict[str, Any] = {}
    for index, (item, uuid) in enumerate(_named(rendered)):
        if (output := outputs.get(item.mm_hash)) is None:
            continue
        name = uuid or item.mm_hash
        if name not in entries:
            entries[name] = named_entry(name, item.mm_hash, _entry(item, output))
        entries[name]["item_indices"].append(index)
    return entries


def _entry(item: MMItem, output: EncodeOutput) -> dict[str, Any]:
    if output.error is not None:
        raise from_info(output.error)
    return {
        "modality": item.modality,
        "item_indices": [],
        "metadata": item_metadata(item),
        **(output.params or {}),
    }


def _named(rendered: RenderedRequest) -> Iterator[tuple[MMItem, str | None]]:
    return zip(rendered.generate.mm_items, rendered.uuids, strict=True)


def _check_names(rendered: RenderedRequest) -> None:
    """`InvalidRequest` if one uuid names two pictures: one would be taken for the other."""
    pictures: dict[str, str] = {}
    for item, uuid in _named(rendered):
        if uuid and pictures.setdefault(uuid, item.mm_hash) != item.mm_hash:
            raise InvalidRequest(
                f"the uuid '{uuid[:64]}' names two different pictures", param="messages"
            )


def _nothing(rendered: RenderedRequest) -> list[RequestOutput]:
    """Every choice ended without a token."""
    request_id = rendered.generate.request_id
    return [
        RequestOutput(request_id, index, finish_reason="length")
        for index in range(rendered.output.n)
    ]


async def _steps_of(
    *steps: list[RequestOutput],
) -> AsyncGenerator[list[RequestOutput], None]:
    for outputs in steps:
        yield outputs
