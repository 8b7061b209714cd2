"""The proxy's gRPC doors, where flags ask for them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

from protocol.errors import ConfigError
from proxy.app import able, service_of
from proxy.gateway import Gateway
from services.grpc.doors import Behind, Place, door
from services.http.access import Access


@contextlib.asynccontextmanager
async def grpc_doors(gateway: Gateway, access: Access) -> AsyncGenerator[tuple[int, int], None]:
    """KServe's and RTP-LLM's protocols while the context lasts; gives their ports, 0 for none.
    `ConfigError` if the library or the model is missing."""
    config = gateway.config
    place = Place("proxy", config.host, config.max_in_flight, config)

    def behind() -> Behind:
        if gateway.models is None:
            raise ConfigError(
                "--kserve-grpc-port, --rtp-grpc-port: they need a model that the proxy renders for:"
                " not with --dialect openai"
            )
        service = service_of(gateway, gateway.models)

        def takes(model: str) -> bool:
            return able(gateway, model) and not gateway.life.draining

        return Behind(service, takes, access)

    async with (
        door("kserve", config.kserve_grpc_port, place, behind) as kserve,
        door("rtp", config.rtp_grpc_port, place, behind) as rtp,
    ):
        yield kserve, rtp
