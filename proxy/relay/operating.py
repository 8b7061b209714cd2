"""Operators' routes of workers: sent to every worker, with the admin key."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from protocol.errors import InvalidRequest, TriptychError, UpstreamError, from_openai
from proxy.fleet.discovery import learn
from proxy.fleet.worker import Instance
from proxy.gateway import Gateway
from proxy.relay.passed_routes import OPERATED, PassedRoute
from proxy.upstream.patience import Patience
from services.http.access import LOAD_ADAPTER_PATH, UNLOAD_ADAPTER_PATH
from services.http.admin import check_admin_key
from services.http.openai import JSON
from services.http.rtp_operations import Adapters, rtp_updates
from services.http.streams import while_connected

_MAX_BODY = 1 << 20
_OF_ADAPTERS = (LOAD_ADAPTER_PATH, UNLOAD_ADAPTER_PATH)
_LACKING = (404, 405)
_UNREACHED = 503  # the worker cannot be asked: nothing is wrong with this proxy
_SHOWN = 4096  # bytes of a worker's answer


def operating(gateway: Gateway) -> APIRouter:
    """The routes of `OPERATED`, and RTP-LLM's way to load adapters."""

    async def load(request: Request, adapters: Adapters) -> Response:
        loads = [{"lora_name": name, "lora_path": path} for name, path in adapters.items()]
        bodies = [msgspec.json.encode(body) for body in loads]
        asked = _asked(gateway, "")
        return await while_connected(request, _on_all(gateway, asked, LOAD_ADAPTER_PATH, bodies))

    routes = rtp_updates(
        lambda request: check_admin_key(request, gateway.config.admin_api_key), load
    )

    def add(route: PassedRoute) -> None:
        async def operated(request: Request, worker: str = "", model: str = "") -> Response:
            check_admin_key(request, gateway.config.admin_api_key)
            async with gateway.bodies.read(request, _MAX_BODY) as body:
                asked = _asked(gateway, worker, model)
                work = _on_all(gateway, asked, route.path, [body], optional=route.optional)
                return await while_connected(request, work)

        does = (
            f"{route.does} Needs the admin key in X-API-Key. `worker`: the URL of the only one that"
            " is asked. `model`: of several, the one whose workers are asked."
        )
        routes.add_api_route(route.path, operated, methods=[route.method], description=does)

    for route in OPERATED:
        add(route)
    return routes


async def _on_all(
    gateway: Gateway,
    asked: Sequence[Instance],
    path: str,
    bodies: Sequence[bytes],
    *,
    optional: bool = False,
) -> Response:
    """Each worker gets the bodies one after the other, up to one that fails. `optional`: workers
    without the route count only if none has it."""

    async def one(worker: Instance) -> dict[str, Any]:
        answer: dict[str, Any] = {}
        for body in bodies:
            answer = await _call(gateway, worker, path, body)
            if answer["status"] >= 300:
                break
        return answer

    answers = await asyncio.gather(*map(one, asked))
    if path in _OF_ADAPTERS:
        await _learn_adapters(gateway, asked)
    told = {worker.url: answer for worker, answer in zip(asked, answers, strict=True)}
    having = [answer for answer in answers if answer["status"] not in _LACKING]
    failure = _failure(path, having if optional and having else answers)
    if failure is None:
        return JSONResponse({"workers": told})
    return JSONResponse({**failure.to_openai(), "workers": told}, failure.status)


async def _learn_adapters(gateway: Gateway, asked: Sequence[Instance]) -> None:
    """What the workers have now, so that clients may name it once the operator has the answer."""
    ours = [worker for worker in asked if worker.dialect == "tokens"]
    await asyncio.gather(*(learn(gateway.client, worker, False) for worker in ours))
    gateway.fleet.news()


def _asked(gateway: Gateway, url: str, model: str = "") -> list[Instance]:
    """`ModelNotFound` or `InvalidRequest` if none is meant."""
    fleet = gateway.fleet
    workers = fleet.models.serving(fleet.all(), model) if model else fleet.all()
    workers = [one for one in workers if not url or one.url == url]
    if not workers:
        raise InvalidRequest("no such worker", param="worker", code="unknown_instance")
    return workers


async def _call(gateway: Gateway, worker: Instance, path: str, body: bytes) -> dict[str, Any]:
    """What a worker says, or why it says nothing. It is not tried again: an operator may."""
    config = gateway.config
    patience = Patience.of(config.decode_timeout)
    headers = {"content-type": JSON}
    try:
        opened = gateway.client.opened("POST", worker.url + path, body, headers, patience)
        async with opened as answer:
            whole = await answer.whole(config.max_answer_bytes)
    except TriptychError as error:
        status = _UNREACHED if isinstance(error, UpstreamError) else error.status
        return {"status": status, "answer": error.message}
    return {"status": whole.status, "answer": _json_or_text(whole.body)}


def _failure(path: str, answers: Sequence[dict[str, Any]]) -> TriptychError | None:
    """The worst of what workers have answered, if one has failed."""
    failed = [answer["status"] for answer in answers if answer["status"] >= 300]
    if not failed:
        return None
    message = (
        f"POST {path} failed at {len(failed)} of {len(answers)} workers; the field `workers` of"
        " this answer has what each said"
    )
    return from_openai(max(failed), {"error": {"message": message}})


def _json_or_text(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body[:_SHOWN])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body[:_SHOWN].decode(errors="replace")
