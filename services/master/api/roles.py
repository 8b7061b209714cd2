"""Have a worker of the role any serve another role, by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from fastapi import APIRouter, Request

from protocol.decoding import accepted
from protocol.errors import InvalidRequest
from protocol.registry import StageRole
from services.http.bodies import read_body
from services.master.api.service import MasterService

PATH = "/instances/role"
_MAX_BODY = 1 << 12


class RoleOrder(msgspec.Struct):
    """`instance_id` or `url` names the worker."""

    role: StageRole
    instance_id: str = ""
    url: str = ""


_bodies = msgspec.json.Decoder(RoleOrder)


def role_orders(service: MasterService, check: Callable[[Request], None]) -> APIRouter:
    """`check` raises if the caller may not ask."""
    routes = APIRouter()

    @routes.post(PATH)
    async def move(request: Request) -> dict[str, Any]:
        """Have a worker serve another role. With --elastic its load may move it on, though not
        within --elastic-dwell."""
        check(request)
        order = accepted(_bodies.decode, await read_body(request, _MAX_BODY))
        name = _named(service, order)
        moved = service.move(name, order.role)
        return {"instance_id": name, "role": order.role, "status": "moved" if moved else "serves"}

    return routes


def _named(service: MasterService, order: RoleOrder) -> str:
    """The worker's instance id."""
    if order.instance_id:
        return order.instance_id
    if not order.url:
        raise InvalidRequest("instance_id: name the worker by it or by url", param="instance_id")
    found = service.master.registry.at(order.url.rstrip("/"))
    if found is None:
        raise InvalidRequest(
            f"url: no worker at '{order.url[:256]}' is registered",
            param="url", code="unknown_instance",
        )  # fmt: skip
    return found.info.instance_id
