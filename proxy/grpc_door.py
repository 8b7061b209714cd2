"""The proxy's gRPC door, where a flag asks for one."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any

from protocol.errors import ConfigError, TriptychError
from protocol.fleet_key import HEADER
from proxy.app import able, service_of
from proxy.gateway import Gateway
from services.http.access import Access

_AS = "/v1/completions"  # the route whose keys a call needs


@contextlib.asynccontextmanager
async def grpc_door(gateway: Gateway, access: Access) -> AsyncGenerator[int | None, None]:
    """KServe's protocol on its port while the context lasts; gives the port, None without one.
    `ConfigError` if the library or the model is missing."""
    config, frontend = gateway.config, gateway.frontend
    if config.kserve_grpc_port < 0:
        yield None
        return
    if frontend is None:
        raise ConfigError(
            "--kserve-grpc-port needs a model that the proxy renders for: not with --dialect openai"
        )
    kserve, server = _modules()

    def check(context: Any) -> TriptychError | None:
        if not access.closed:
            return None
        fleet, client = (server.metadata_of(context, name) for name in (HEADER, "authorization"))
        return access.judge(_AS, fleet, client, method="POST")

    service = service_of(gateway, frontend)
    handler = kserve.KServe(service, _taking(gateway), check).handler()
    bounds = server.Bounds(config.max_body_bytes, config.max_in_flight)
    serving = server.serving(
        "proxy", config.host, config.kserve_grpc_port, [handler], bounds, config
    )
    async with serving as port:
        yield port


def _taking(gateway: Gateway) -> Callable[[], bool]:
    return lambda: able(gateway) and not gateway.life.draining


def _modules() -> tuple[Any, Any]:
    try:
        from services.grpc import kserve, server
    except ImportError as error:
        raise ConfigError(
            f"--kserve-grpc-port: {error.name} is not installed: pip install 'triptych[grpc]'"
        ) from None
    return kserve, server
