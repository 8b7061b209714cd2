"""RTP-LLM's master contract: `/rtp_llm/schedule` and `/rtp_llm/master`.

Field names are RTP-LLM's. Its frontends report nothing when a request ends, so what is placed for
them is counted until `generate_timeout`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
import numpy as np
from fastapi import APIRouter, Request, Response
from msgspec import Meta

from protocol.decoding import accepted
from protocol.errors import RequestAborted, TriptychError
from protocol.kv_events import short_key
from protocol.placement import Placement, ScheduleRequest, Target
from services.admission.ticket import Ticket
from services.http.streams import ended_by, over
from services.master.api.rpc import read_body, unless_left
from services.master.api.service import MasterService

_ROLES = MappingProxyType(
    {"pdfusion": 0, "prefill_decode": 0, "prefill": 1, "decode": 2, "encode": 3}
)
_ERRORS = MappingProxyType(
    {
        "no_worker": 8400, "model_not_found": 8400, "no_prefill": 8402, "no_decode": 8403,
        "no_encode": 8405, "disagg_unavailable": 8402, "queue_full": 8502,
        "rate_limit_exceeded": 8502, "all_busy": 8502,
        "queue_timeout": 8503, "deadline_exceeded": 8503, "deadline_unreachable": 8503,
        "preempted": 8429,
    }
)  # fmt: skip
_NO_WORKER = 8400
_BAD_REQUEST = 8406
_ANY_MODEL = "engine_service"  # what RTP-LLM's frontends always ask for
_REMOTE = 1
_BLOCK_SIZE = 64
_MOST_TOKENS = 1 << 40


class RtpScheduleRequest(msgspec.Struct):
    """RTP-LLM's question where to send a request."""

    # Of the prompt's full blocks.
    block_cache_keys: Annotated[list[int], Meta(max_length=1 << 20)] = []
    seq_len: Annotated[int, Meta(ge=1, le=_MOST_TOKENS)] = 1  # tokens of the prompt
    model: str = ""  # "" where only one is served
    debug: bool = False  # asks for the numbers behind the choice
    generate_timeout: Annotated[float, Meta(le=1e12)] = 0  # ms, 0 or less for none
    request_priority: Annotated[int, Meta(ge=0, le=100)] = 0  # 0 means 50
    # Tokens that each key stands for, 0 for as many as workers' blocks have.
    cache_key_block_size: Annotated[int, Meta(ge=0, le=65536)] = 0


_requests = msgspec.json.Decoder(RtpScheduleRequest)


@dataclass
class RtpContract:
    """`host` is this master's ip:port as clients reach it."""

    service: MasterService
    host: str
    _ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    async def schedule(self, data: bytes, left: asyncio.Future[Any]) -> dict[str, Any] | None:
        """The answer, errors included: RTP-LLM's clients read `code`, which is 200 or one of its
        error codes, under HTTP 200; None if the caller has `left`."""
        number = next(self._ids)
        try:
            request = accepted(_requests.decode, data)
            if request.model == _ANY_MODEL:
                request.model = ""
            placement = await self._place(request, number, left)
        except TriptychError as error:
            self.service.metrics.errors.labels(error.code).inc()
            code = _BAD_REQUEST if error.status == 400 else _NO_WORKER
            code = _ERRORS.get(error.code, code)
            return {
                "server_status": [], "cache_local": _REMOTE, "inter_request_id": number,
                "success": False, "code": code, "error_message": error.message,
                "error_code": code, "real_master_host": self.host,
            }  # fmt: skip
        if placement is None:
            return None
        return {
            "server_status": self._servers(placement, request.model), "cache_local": _REMOTE,
            "inter_request_id": number, "success": True, "code": 200, "error_code": 0,
            "real_master_host": self.host,
        }  # fmt: skip

    async def _place(
        self, asked: RtpScheduleRequest, number: int, left: asyncio.Future[Any]
    ) -> Placement | None:
        size = self._block_size(asked)
        timeout = asked.generate_timeout / 1e3
        request = ScheduleRequest(
            request_id=f"rtp-{number}",
            prompt_tokens=asked.seq_len,
            model=asked.model,
            # No more than the prompt has full blocks: the request would be refused for it.
            block_keys=[short_key(key) for key in asked.block_cache_keys[: asked.seq_len // size]],
            block_size=size,
            priority=asked.request_priority,
            deadline_s=timeout if timeout > 0 else None,
            debug=asked.debug,
        )
        placed = self.service.schedule(request)
        if isinstance(placed, Ticket):
            return await self.service.wait(placed, left)
        return placed

    def _block_size(self, asked: RtpScheduleRequest) -> int:
        """What the caller says, or else the workers'."""
        if asked.cache_key_block_size:
            return asked.cache_key_block_size
        registry = self.service.master.registry
        for instance in registry.fleet(asked.model).by_slot.values():
            return instance.info.block_size
        return _BLOCK_SIZE

    def _servers(self, placement: Placement, model: str) -> list[dict[str, Any]]:
        """The workers of each stage; an encoder is among them wherever there is one, since the
        question does not say whether there are pictures."""
        targets = [("prefill", placement.prefill), ("decode", placement.decode)]
        debug = placement.debug or {}
        servers = [
            self._server(target, debug.get(stage) or debug.get("combined"))
            for stage, target in targets
            if target is not None
        ]
        if (encoder := self._encoder(model)) is not None:
            servers.append(self._server(encoder, None))
        return servers

    def _encoder(self, model: str) -> Target | None:
        """The encoder with the least to do that may be used."""
        fleet = self.service.master.registry.fleet(model)
        pool = fleet.pools["encode"]
        if not pool.able:
            return None
        row = int(np.argmin(pool.busy_until + pool.penalty))
        return fleet.by_slot[int(pool.slots[row])].target

    def _server(self, target: Target, debug: dict[str, Any] | None) -> dict[str, Any]:
        address = urlsplit(target.url)
        port = address.port or (443 if address.scheme == "https" else 80)
        return {
            "role": _ROLES[target.role],
            "server_ip": address.hostname or "",
            "http_port": port,
            "grpc_port": self._grpc_port(target),
            "debug_info": None if debug is None else _debug(debug["workers"][debug["chosen"]]),
        }

    def _grpc_port(self, target: Target) -> int:
        """Where the worker says that gRPC listens; 0, which RTP-LLM's engines take for no address,
        where none does. The field is required there."""
        instance = self.service.master.registry.instances.get(target.instance_id)
        return instance.info.grpc_port if instance is not None else 0


def _debug(numbers: dict[str, float]) -> dict[str, int]:
    """Whole numbers, as RTP-LLM's clients insist on."""
    found = {
        "running_batch_size": numbers["requests"],
        "queue_size": numbers["queued_tokens"],
        "waiting_time_ms": numbers["queue_ms"],
        "available_kv_cache_len": numbers["free_blocks"],
        "estimate_ttft_ms": numbers["ttft_ms"],
        "estimate_tpot_ms": numbers["step_ms"],
        "hit_cache_len": numbers["hit_tokens"],
    }
    return {name: round(min(value, _MOST_TOKENS)) for name, value in found.items()}


def rtp_routes(contract: RtpContract, max_body_bytes: int) -> APIRouter:
    routes = APIRouter()

    @routes.post("/rtp_llm/schedule")
    async def schedule(request: Request) -> Response:
        """Prefill and decode workers for a request."""
        body = await read_body(request.receive, max_body_bytes)
        if body is None:
            return Response(status_code=RequestAborted.status)
        left = over(request.scope, request.receive)
        answer = await unless_left(left, lambda left: contract.schedule(body, left))
        if ended := ended_by(request.scope):
            raise ended
        if answer is None:
            return Response(status_code=RequestAborted.status)
        return Response(msgspec.json.encode(answer), media_type="application/json")

    @routes.post("/rtp_llm/master")
    @routes.post("/rtp_llm/master/info")
    async def master() -> dict[str, Any]:
        """Which master to ask, and how many requests wait there."""
        return {
            "real_master_host": contract.host,
            "queue_length": contract.service.master.waiting,
        }

    return routes
