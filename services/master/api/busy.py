"""Dynamo's `/busy_threshold`: with how much KV in use a worker is full, while the master runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Request
from msgspec import Meta

from protocol.decoding import accepted
from protocol.errors import InvalidRequest, ModelNotFound
from services.http.bodies import read_body
from services.master.fleet.fleet import Fleet
from services.master.fleet.registry import Registry

PATH = "/busy_threshold"
_MAX_BODY = 1 << 12
_KINDS = ("decode", "combined")


class BusyThreshold(msgspec.Struct):
    """`active_decode_blocks_threshold`: a share of KV blocks, None to be told the present one."""

    model: str
    active_decode_blocks_threshold: Annotated[float, Meta(gt=0, le=1)] | None = None
    # Read to be refused by name: a field that is not declared would be passed over.
    active_prefill_tokens_threshold: Any = None


_bodies = msgspec.json.Decoder(BusyThreshold)


def busy_thresholds(registry: Registry, check: Callable[[Request], None]) -> APIRouter:
    """`check` raises if the caller may not ask. What is set holds until the master ends, and is not
    told to other masters."""
    routes = APIRouter()

    @routes.get(PATH)
    async def show(request: Request) -> dict[str, Any]:
        """The thresholds of all models."""
        check(request)
        return {"thresholds": [_shown(fleet) for fleet in registry.fleets.values()]}

    @routes.post(PATH)
    async def set_threshold(request: Request) -> dict[str, Any]:
        """Set a model's threshold, or ask for it."""
        check(request)
        wanted = accepted(_bodies.decode, await read_body(request, _MAX_BODY))
        if wanted.active_prefill_tokens_threshold is not None:
            raise InvalidRequest(
                "active_prefill_tokens_threshold is not supported: --busy-queue-ms bounds queued"
                " work in milliseconds",
                param="active_prefill_tokens_threshold",
                code="unsupported_parameter",
            )
        fleet = registry.fleets.get(wanted.model)
        if fleet is None:
            raise ModelNotFound(f"model: '{wanted.model[:256]}' has no workers", param="model")
        if wanted.active_decode_blocks_threshold is not None:
            for kind in _KINDS:
                fleet.pools[kind].set_busy_kv_usage(wanted.active_decode_blocks_threshold)
        return _shown(fleet)

    return routes


def _shown(fleet: Fleet) -> dict[str, Any]:
    return {
        "model": fleet.model,
        "active_decode_blocks_threshold": fleet.pools["decode"].busy_kv_usage,
        "active_prefill_tokens_threshold": None,
    }
