"""What makes one role differ from another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastapi import APIRouter

from protocol.types import Role
from services.engine.config import Part

if TYPE_CHECKING:
    from services.worker.worker import Worker


@dataclass(frozen=True)
class RoleSpec:
    """`parts` of the model are loaded; transports are what is used if no flag says otherwise;
    `routers` build the role's own routes around a worker."""

    name: Role
    parts: tuple[Part, ...]
    ec_transport: str
    kv_transport: str
    routers: tuple[Callable[[Worker], APIRouter], ...]
