"""A worker's LoRA adapters come and go: vLLM's routes and RTP-LLM's `/update`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import Meta

from protocol.decoding import accepted
from protocol.errors import InvalidRequest
from protocol.registry import Name
from services.http.access import LOAD_ADAPTER_PATH, UNLOAD_ADAPTER_PATH
from services.http.bodies import read_body
from services.http.rtp_operations import Adapters, rtp_updates
from services.worker.worker import Worker

_MAX_BODY = 1 << 20


class _Load(msgspec.Struct):
    """vLLM's further fields are taken and have no effect."""

    lora_name: Name
    lora_path: Annotated[str, Meta(min_length=1, max_length=4096)]


class _Unload(msgspec.Struct):
    lora_name: Name


def adapting(worker: Worker) -> APIRouter:
    """Who may reach the worker's control routes may have it read any folder of its machine."""
    routes = APIRouter()

    @routes.post(LOAD_ADAPTER_PATH)
    async def load(request: Request) -> Response:
        """Load a LoRA adapter from a folder of this machine, by lora_name and lora_path. Nothing
        happens if it is loaded from the same files already."""
        wanted = accepted(_LOAD.decode, await read_body(request, _MAX_BODY))
        await _load(worker, wanted.lora_name, wanted.lora_path)
        return Response(f"Success: LoRA adapter '{wanted.lora_name}' added successfully.")

    @routes.post(UNLOAD_ADAPTER_PATH)
    async def unload(request: Request) -> Response:
        """Unload a LoRA adapter by lora_name; requests that have it go on."""
        wanted = accepted(_UNLOAD.decode, await read_body(request, _MAX_BODY))
        if "language" in worker.role.parts:
            await worker.engine.unload_adapter(wanted.lora_name)
        return Response(f"Success: LoRA adapter '{wanted.lora_name}' removed successfully.")

    async def load_all(request: Request, adapters: Adapters) -> Response:
        for name, folder in adapters.items():
            await _load(worker, name, folder)
        return Response()

    routes.include_router(rtp_updates(lambda request: None, load_all))
    return routes


async def _load(worker: Worker, name: str, folder: str) -> None:
    """Nothing on an encode worker: adapters change the language model alone."""
    if name in worker.frontend.config.names:
        raise InvalidRequest(f"lora_name: '{name}' is the model's own name", param="lora_name")
    if "language" in worker.role.parts:
        await worker.engine.load_adapter(name, folder)


_LOAD = msgspec.json.Decoder(_Load)
_UNLOAD = msgspec.json.Decoder(_Unload)
