"""Which gRPC doors a process opens, by its flags."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from types import ModuleType

from protocol.errors import ConfigError
from protocol.server_options import TlsOptions
from services.http.access import Access
from services.http.openai import Service


@dataclass(frozen=True)
class Place:
    """Where a process listens, and how many calls it takes at once. `name`: the process."""

    name: str
    host: str
    max_calls: int
    tls: TlsOptions


@dataclass(frozen=True)
class Behind:
    """What a door leads to. `able`: whether requests to the model with this first name had
    better come, "" for any model; `access`: their keys."""

    service: Service
    able: Callable[[str], bool]
    access: Access


@contextlib.asynccontextmanager
async def door(
    protocol: str, port: int, place: Place, behind: Callable[[], Behind]
) -> AsyncGenerator[int, None]:
    """`protocol`, kserve or rtp, on its port while the context lasts; gives the port, 0 without one
    (-1). `ConfigError` if the library is missing."""
    if port < 0:
        yield 0
        return
    module, server = _modules(protocol)
    kind = module.KServe if protocol == "kserve" else module.RtpModel
    found = behind()
    handler = kind(found.service, found.able, server.checked(found.access)).handler()
    bodies = found.service.bodies
    largest = server.Intake.largest(bodies.largest, bodies.capacity)
    bounds = server.Bounds(largest, place.max_calls)
    serving = server.serving(place.name, place.host, port, [handler], bounds, place.tls)
    async with serving as bound:
        yield bound


def _modules(protocol: str) -> tuple[ModuleType, ModuleType]:
    try:
        from services.grpc import kserve, rtp, server
    except ImportError as error:
        raise ConfigError(
            f"--{protocol}-grpc-port: {error.name} is not installed: pip install 'triptych[grpc]'"
        ) from None
    return (kserve if protocol == "kserve" else rtp), server
