"""The models of a fleet, as its workers list them, and what the proxy itself calls them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from protocol.decoding import decoded
from protocol.errors import ModelNotFound, TriptychError, UpstreamError
from proxy.fleet.fleet import Fleet
from proxy.fleet.worker import Instance
from proxy.gateway import Gateway
from proxy.relay.bodies import RequestBody
from proxy.relay.request import for_worker
from services.http.openai import JSON

Card = dict[str, Any]


class _List(msgspec.Struct):
    data: list[Card]


def listing(gateway: Gateway) -> APIRouter:
    """`/v1/models` and each of them, asked of a decode worker of each model."""
    routes, keyed = APIRouter(), gateway.config.asks_for_api_keys

    async def told(request: Request, worker: Instance) -> bytes:
        headers = for_worker(request, keyed=keyed)
        return await gateway.client.get(f"{worker.url}/v1/models", headers=headers)

    async def cards(request: Request) -> list[Card]:
        """Of all models; of a model whose worker does not answer there are none."""
        asked = [told(request, worker) for worker in _one_of_each_model(gateway)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        found: dict[str, Card] = {}
        for answer in answers:
            if isinstance(answer, bytes):
                for card in _read(answer):
                    found.setdefault(str(card.get("id")), card)
            # Of several models the others are listed all the same; of one there is no other.
            elif not isinstance(answer, TriptychError) or len(answers) == 1:
                raise answer
        return list(found.values())

    @routes.get("/v1/models")
    async def models(request: Request) -> Response:
        """The models that decode workers serve, with their aliases and LoRA adapters."""
        if not gateway.fleet.models.several:
            return Response(await told(request, gateway.fleet.choose("decode")), media_type=JSON)
        shown = {"object": "list", "data": await cards(request)}
        return Response(msgspec.json.encode(shown), media_type=JSON)

    @routes.get("/v1/models/{model:path}")
    async def one_model(request: Request, model: str) -> Response:
        """One of them, by its name."""
        for card in await cards(request):
            if card.get("id") == model:
                return Response(msgspec.json.encode(card), media_type=JSON)
        raise ModelNotFound(f"model: '{model[:256]}' is not served here", param="model")

    return routes


def _one_of_each_model(gateway: Gateway) -> list[Instance]:
    """A decode worker for each set of names, so that adapters of a few workers are told too;
    `NoWorker` if there is none."""
    fleet = gateway.fleet
    if not fleet.models.several:
        return [fleet.choose("decode")]
    able = fleet.usable("decode") or fleet.usable("prefill")
    if not able:
        raise fleet.no_worker("decode")
    return list({(worker.model, worker.models): worker for worker in able}.values())


def _read(answer: bytes) -> list[Card]:
    return decoded(answer, _List, fail=lambda what: UpstreamError(f"/v1/models: {what}")).data


class OwnNames:
    """`names`: of --served-model-name."""

    def __init__(self, fleet: Fleet, names: Iterable[str]) -> None:
        self._fleet = fleet
        self._names = frozenset(names)

    def rename(self, request: RequestBody) -> None:
        """A name of the proxy's own stands for the model that all workers serve."""
        if self._names and request.model in self._names:
            workers = [one for one in self._fleet.all() if one.model]
            models = {one.model for one in workers}
            known = any(request.model in one.models for one in workers)
            if len(models) == 1 and not known:
                request.rename_model(models.pop())
