"""`python -m proxy`."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Sequence

import uvloop

from protocol.errors import ConfigError
from protocol.fleet_key import FleetKey
from protocol.logs import configure_logging
from protocol.settings import describe, resolve
from proxy.app import OPENED, served
from proxy.assembly import make_gateway
from proxy.config import ProxyConfig
from proxy.gateway import Gateway
from proxy.relay import serving
from proxy.relay.entry import Entry
from proxy.relay.relay import Relay
from proxy.upstream.client import UpstreamClient
from services.frontend.render import Frontend
from services.http.access import Access, ApiKeys, check_reach
from services.http.open_files import raise_limit
from services.http.server import bind, inherited, serve

logger = logging.getLogger("proxy")


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 after a clean stop, 2 for a bad configuration."""
    try:
        config = resolve(ProxyConfig, sys.argv[1:] if argv is None else argv, prog="proxy")
        configure_logging("proxy", config.log_level, config.log_format)
        logger.info("configuration:\n%s", describe(config))
        raise_limit()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run(config))
    except ConfigError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 2
    return 0


async def run(config: ProxyConfig) -> None:
    """Serve until told to stop. Workers need not be up yet."""
    key, tls = config.read_fleet_key(), config.client_context()
    clients = ApiKeys(config.read_api_keys())
    access = Access(clients=clients, opened=OPENED, protect_metrics=config.protect_metrics)
    config.check_tls()
    authenticated = bool(clients) or bool(config.ssl_ca_certs)
    check_reach(
        logger, "--api-key", authenticated, [("--host", config.host)], config.allow_unprotected
    )
    with inherited(config.fd) if config.fd else bind(config.host, config.port) as listener:
        frontend = _frontend(config)
        connect_s = config.connect_timeout
        client = UpstreamClient(connect_s, authorization=config.authorization, key=key, tls=tls)
        masters = UpstreamClient(
            connect_s, key=key, tls=tls
        )  # the workers' API key is not for them
        gateway = make_gateway(config, frontend, client, masters)
        try:
            await _serve(gateway, listener, key, access)
        finally:
            gateway.log.flush()
            if gateway.tracer is not None:
                await asyncio.to_thread(gateway.tracer.close)
            await masters.close()
            await client.close()
            if frontend is not None:
                await frontend.close()


def _frontend(config: ProxyConfig) -> Frontend | None:
    """None if workers render; a model that cannot be read is an error unless that is forced."""
    if config.dialect == "openai":
        return None
    try:
        return Frontend.load(config.to_config())
    except ConfigError as error:
        hint = "workers that render by themselves need no model here: --dialect openai"
        raise ConfigError(f"{error.message} ({hint})") from None


async def _serve(gateway: Gateway, listener: socket.socket, key: FleetKey, access: Access) -> None:
    config, share, life = gateway.config, serving.CLIENT_SHARE, gateway.life
    app = served(gateway, access)
    if config.dialect == "tokens":
        await serve(app, listener, "proxy", client_share=share, tls=config, life=life)
        return
    relay = Relay(gateway, key)
    try:
        entry = Entry(access.clients, config)
        await serving.serve(app, listener, relay, life, entry, config)
    finally:
        await relay.close()


if __name__ == "__main__":
    sys.exit(main())
