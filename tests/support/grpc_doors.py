"""The gRPC door of a proxy before scripted workers, in the test's process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from proxy.app import OPENED, grpc_doors
from services.frontend.models import Models
from services.frontend.render import Frontend
from services.http.access import Access, ApiKeys
from tests.support.scripted_apps import models_of
from tests.support.scripted_workers import Stack


@asynccontextmanager
async def door_of(
    stack: Stack, front: Frontend | Models | None, keys: tuple[str, ...] = (), *, rtp: bool = False
) -> AsyncIterator[str]:
    """The address of KServe's door, and with `rtp` of RTP-LLM's."""
    config = replace(
        stack.gateway.config, kserve_grpc_port=-1 if rtp else 0, rtp_grpc_port=0 if rtp else -1
    )
    gateway = replace(stack.gateway, models=models_of(front) if front else None, config=config)
    gateway.bodies = stack.gateway.bodies
    access = Access(clients=ApiKeys(keys), opened=OPENED)
    async with grpc_doors(gateway, access) as found:
        yield f"127.0.0.1:{max(found)}"
