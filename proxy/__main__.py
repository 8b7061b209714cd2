"""`python -m proxy`."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import uvloop
from starlette.types import ASGIApp

from protocol.errors import ConfigError
from protocol.logs import configure_logging
from protocol.settings import describe, resolve
from protocol.termination import closed_by_sigterm, ended_by_sigterm
from proxy.app import OPENED, grpc_doors, served
from proxy.assembly import make_gateway
from proxy.config import ProxyConfig
from proxy.gateway import Gateway
from proxy.processes import BAD_CONFIGURATION, Processes
from proxy.relay import serving
from proxy.relay.relay import Relay
from proxy.relay.request import Entry
from proxy.siblings import Siblings
from proxy.upstream.client import UpstreamClient
from services.frontend.models import Models
from services.http.access import Access, ApiKeys, check_reach
from services.http.open_files import raise_limit
from services.http.server import bind, inherited, serve

logger = logging.getLogger("proxy")
_LAST_WORDS_S = 10.0  # beyond the time that a process itself takes to end


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 after a clean stop, 2 for a bad configuration, 143 for SIGTERM before it
    serves."""
    try:
        config = resolve(ProxyConfig, sys.argv[1:] if argv is None else argv, prog="proxy")
        config = config.with_dialect()
        config.check_workers()
        config.check_timeouts()
        configure_logging("proxy", config.log_level, config.log_format)
        logger.info("configuration:\n%s", describe(config))
        # Before anything is opened: the shares of connections are taken from this limit.
        raise_limit()
        # Bound before any fork: all processes accept on this one socket.
        with inherited(config.fd) if config.fd else bind(config.host, config.port) as listener:
            if config.workers > 1:
                return _all(config, listener)
            with ended_by_sigterm():
                return _process(config, listener)
    except ConfigError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return BAD_CONFIGURATION


def _all(config: ProxyConfig, listener: socket.socket) -> int:
    """As many processes as there are to be; a response that one stores another would not find."""
    config = dataclasses.replace(config, response_store_bytes=0)
    end_s = config.drain_delay + config.shutdown_timeout + _LAST_WORDS_S
    with tempfile.TemporaryDirectory(prefix="triptych-proxy-") as folder:

        def work(number: int, parent: int) -> int:
            return _process(
                config, listener, Siblings(Path(folder), number, config.workers), parent
            )

        return Processes(work, config.workers, end_s, listener.close).run()


def _process(
    config: ProxyConfig,
    listener: socket.socket,
    siblings: Siblings | None = None,
    parent: int | None = None,
) -> int:
    """One process; its exit status. It ends once `parent`, a pipe, has no other end."""
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            if parent is not None:
                _end_without(parent, runner.get_loop())
            work = run(config, listener, siblings)
            # The parent of several ends them by SIGTERM, and takes status 143 for a failure.
            runner.run(work if parent is not None else closed_by_sigterm(work))
    except ConfigError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return BAD_CONFIGURATION
    return 0


def _end_without(parent: int, loop: asyncio.AbstractEventLoop) -> None:
    """Drain once the pipe has no other end."""

    def end() -> None:
        # The pipe stays readable, and a second signal would not let requests finish.
        loop.remove_reader(parent)
        os.kill(os.getpid(), signal.SIGTERM)

    loop.add_reader(parent, end)


async def run(
    config: ProxyConfig, listener: socket.socket, siblings: Siblings | None = None
) -> None:
    """Serve on `listener` until told to stop. Workers need not be up yet."""
    key, tls = config.read_fleet_key(), config.client_context()
    clients = ApiKeys(config.read_api_keys())
    access = Access(clients=clients, opened=OPENED, protect_metrics=config.protect_metrics)
    config.check_tls()
    authenticated = bool(clients) or bool(config.ssl_ca_certs)
    check_reach(
        logger, "--api-key", authenticated, [("--host", config.host)], config.allow_unprotected
    )
    models = _models(config)
    connect_s = config.connect_timeout
    client = UpstreamClient(connect_s, authorization=config.authorization, key=key, tls=tls)
    masters = UpstreamClient(connect_s, key=key, tls=tls)  # the workers' API key is not for them
    gateway = make_gateway(config, models, client, masters, key)
    app = served(gateway, access, siblings)
    beside = siblings.answered(gateway.metrics.render) if siblings else contextlib.nullcontext()
    try:
        async with beside:
            await _serve(gateway, app, listener, access)
    finally:
        gateway.log.flush()
        if gateway.tracer is not None:
            # In a thread: to close it is to send the spans that wait, which blocks.
            await asyncio.to_thread(gateway.tracer.close)
        gateway.pools.close()
        await masters.close()
        await client.close()
        if models is not None:
            await models.close()


def _models(config: ProxyConfig) -> Models | None:
    """None if workers render; a model that cannot be read is an error unless that is forced."""
    if config.dialect == "openai":
        return None
    try:
        return Models.load(config.to_configs())
    except ConfigError as error:
        hint = "workers that render by themselves need no model here: --dialect openai"
        raise ConfigError(f"{error.message} ({hint})") from None


async def _serve(gateway: Gateway, app: ASGIApp, listener: socket.socket, access: Access) -> None:
    config, share, life = gateway.config, serving.CLIENT_SHARE, gateway.life
    async with grpc_doors(gateway, access):
        if config.dialect == "tokens":
            await serve(app, listener, "proxy", client_share=share, tls=config, life=life)
            return
        relay = Relay(gateway)
        try:
            entry = Entry(access.clients, config)
            await serving.serve(app, listener, relay, life, entry, config)
        finally:
            await relay.close()


if __name__ == "__main__":
    sys.exit(main())
