"""`python -m proxy`."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence

from protocol.errors import ConfigError
from protocol.settings import describe, resolve
from proxy.app import create_app
from proxy.client import UpstreamClient
from proxy.config import ProxyConfig
from proxy.encode_stage import EncodeStage
from proxy.fleet import Fleet
from proxy.gateway import Gateway
from proxy.metrics import ProxyMetrics
from proxy.pipeline import Pipeline
from services.frontend.render import Frontend
from services.http.server import bind, serve

logger = logging.getLogger("proxy")


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 after a clean stop, 2 for a bad configuration."""
    try:
        config = resolve(ProxyConfig, sys.argv[1:] if argv is None else argv, prog="proxy")
        logging.basicConfig(
            level=config.log_level.upper(), format="%(asctime)s %(levelname)s proxy: %(message)s"
        )
        logger.info("configuration:\n%s", describe(config))
        asyncio.run(run(config))
    except ConfigError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 2
    return 0


async def run(config: ProxyConfig) -> None:
    """Serve until told to stop. Workers need not be up yet."""
    with bind(config.host, config.port) as listener:
        frontend = Frontend.load(config.to_config())
        client = UpstreamClient(config.connect_timeout)
        try:
            gateway = make_gateway(config, frontend, client)
            await serve(create_app(gateway), listener, "proxy")
        finally:
            await client.close()
            await frontend.close()


def make_gateway(config: ProxyConfig, frontend: Frontend, client: UpstreamClient) -> Gateway:
    fleet = Fleet.from_urls(
        config.encode_servers_urls, config.prefill_servers_urls, config.decode_servers_urls
    )
    encode_stage = EncodeStage(fleet, client, config.encode_timeout)
    pipeline = Pipeline(fleet, client, encode_stage, config.request_timeout)
    return Gateway(config, frontend, fleet, client, pipeline, ProxyMetrics(fleet))


if __name__ == "__main__":
    sys.exit(main())
