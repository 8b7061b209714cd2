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
from fastapi import APIRouter, Request, Response
from msgspec import Meta

from protocol.decoding import accepted
from protocol.errors import RequestAborted, TriptychError
from protocol.kv_events import short_key
from protocol.registry import Placement, ScheduleRequest, Target
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
        "no_encode": 8405, "queue_full": 8502, "rate_limit_exceeded": 8502, "all_busy": 8502,
        "queue_timeout": 8503, "deadline_exceeded": 8503, "deadline_unreachable": 8503,
        "preempted": 8429,
    }
)  # fmt: skip
_NO_WORKER = 8400
_REMOTE = 1
_BLOCK_SIZE = 64
_MOST_TOKENS = 1 << 40


class RtpScheduleRequest(msgspec.Struct):
    """`generate_timeout` in ms, 0 or less for none; priority 0 means 50."""

    block_cache_keys: Annotated[list[int], Meta(max_length=1 << 20)] = []
    seq_len: Annotated[int, Meta(ge=1, le=_MOST_TOKENS)] = 1
    model: str = ""
    debug: bool = False
    generate_timeout: Annotated[float, Meta(le=1e12)] = 0
    request_priority: Annotated[int, Meta(ge=0, le=100)] = 0


_requests = msgspec.json.Decoder(RtpScheduleRequest)


@dataclass
class RtpContract:
    """`host` is this master's ip:port as clients reach it."""

    service: MasterService
    host: str
    _ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    async def schedule(self, data: bytes, left: asyncio.Future[Any]) -> dict[str, Any] | None:
        """The answer, errors included: RTP-LLM's clients read `success` and `error_code`; None if
        the caller has `left`."""
        number = next(self._ids)
        try:
            request = accepted(_requests.decode, data)
            placement = await self._place(request, number, left)
        except TriptychError as error:
            self.service.metrics.errors.labels(error.code).inc()
            return {
                "server_status": [], "cache_local": _REMOTE, "inter_request_id": number,
                "success": False, "code": error.status, "error_message": error.message,
                "error_code": _ERRORS.get(error.code, _NO_WORKER), "real_master_host": self.host,
            }  # fmt: skip
        if placement is None:
            return None
        return {
            "server_status": self._servers(placement), "cache_local": _REMOTE,
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
        """The workers', or what the number of keys suggests."""
        registry = self.service.master.registry
        for instance in registry.fleet(asked.model).by_slot.values():
            return instance.info.block_size
        return _BLOCK_SIZE

    def _servers(self, placement: Placement) -> list[dict[str, Any]]:
        targets = [("prefill", placement.prefill), ("decode", placement.decode)]
        debug = placement.debug or {}
        return [
            _server(target, debug.get(stage) or debug.get("combined"))
            for stage, target in targets
            if target is not None
        ]


def _server(target: Target, debug: dict[str, Any] | None) -> dict[str, Any]:
    address = urlsplit(target.url)
    port = address.port or 80
    status: dict[str, Any] = {
        "role": _ROLES[target.role],
        "server_ip": address.hostname or "",
        "http_port": port,
        "grpc_port": port + 1,
        "debug_info": None,
    }
    if debug is not None:
        status["debug_info"] = _debug(debug["workers"][debug["chosen"]])
    return status


def _debug(numbers: dict[str, float]) -> dict[str, float]:
    return {
        "running_batch_size": numbers["requests"],
        "queue_size": numbers["queued_tokens"],
        "waiting_time_ms": numbers["queue_ms"],
        "available_kv_cache_len": numbers["free_blocks"],
        "estimate_ttft_ms": numbers["ttft_ms"],
        "estimate_tpot_ms": numbers["step_ms"],
        "hit_cache_len": numbers["hit_tokens"],
    }


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
