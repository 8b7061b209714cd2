"""Start mock workers of one role and serve until told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Sequence

import uvloop
import zmq.asyncio

from protocol.curve import Curve
from protocol.errors import ConfigError, InvalidRequest, NotServing
from protocol.generate import ABORT_PATH, ENCODE_PATH, GENERATE_PATH
from protocol.logs import configure_logging
from protocol.openai import CHAT_PATH, COMPLETIONS_PATH
from protocol.rtp_status import CACHE_PATHS, WORK_PATHS
from protocol.settings import describe, resolve
from services.http.accepting import Room
from services.http.access import Access, ApiKeys, check_reach
from services.http.lame_duck import LameDuck
from services.http.open_files import raise_limit
from services.http.server import announce, bind
from services.membership.registration import Changes
from services.mock import openai_api, status_api, tokens_api
from services.mock.config import MockConfig
from services.mock.instance import Instance
from services.mock.peers import ASK_PATH, CONFIRM_PATH, EMBEDDINGS_PATH, RELEASE_PATH, Peers
from services.mock.publisher import Publisher
from services.mock.registration import Registration
from services.mock.server import Handler, Routes, Server
from services.mock.settings import EngineSettings

logger = logging.getLogger("mock")
_MAX_SOCKETS = 65_536
_CLIENT_SHARE = 0.75  # of the open files; mock workers ask one another


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 after a clean stop, 2 for a bad configuration."""
    try:
        config = resolve(MockConfig, sys.argv[1:] if argv is None else argv, prog="services.mock")
        configure_logging("mock", config.log_level, config.log_format)
        logger.info("configuration:\n%s", describe(config))
        uvloop.run(serve(config))
    except (ConfigError, InvalidRequest) as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 2
    return 0


async def serve(config: MockConfig) -> None:
    """Serve until SIGINT or SIGTERM."""
    raise_limit()
    key = config.read_fleet_key()
    check_reach(
        logger, "--fleet-key", bool(key), [("--host", config.host)], config.allow_unprotected
    )
    clients = ApiKeys(config.read_api_keys())
    access = Access(key, clients, protect_metrics=config.protect_metrics)
    life = LameDuck(config.drain_delay, config.shutdown_timeout)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, life.signal)
    async with contextlib.AsyncExitStack() as stack:
        peers = Peers(config.encoders, key=key, api_key=next(iter(config.read_api_keys()), ""))
        stack.push_async_callback(peers.close)
        servers = await _open_all(config, peers, stack, access, life)
        instances, changes = [server.instance for server in servers], Changes()
        registration = Registration(
            instances, config.masters, config.heartbeat_interval, changes, key
        )
        stack.push_async_callback(registration.close)
        registration.start()
        for server in servers:
            server.instance.begin(server.instance.faults.rules, server.refuse)
        await _stopped(life, instances, registration, changes)


async def _stopped(
    life: LameDuck, instances: Sequence[Instance], registration: Registration, changes: Changes
) -> None:
    """As `services.worker` ends: masters hear of it, then it takes no more requests, those under
    way end, others fetch what was made for them, and what is left gets an error."""
    await life.begun.wait()
    changes.announce()
    await life.over()
    for instance in instances:
        instance.draining, instance.drained_by_master = True, False
    await registration.close()

    async def kept() -> bool:
        return any(instance.kept for instance in instances)

    if not await life.handed_over(kept):
        for instance in instances:
            instance.driver.fail(NotServing("the server is shutting down", retry_after_s=1.0))
        await life.told(lambda: any(instance.in_flight for instance in instances))


async def _open_all(
    config: MockConfig,
    peers: Peers,
    stack: contextlib.AsyncExitStack,
    access: Access,
    life: LameDuck,
) -> list[Server]:
    """Every worker listens, and says so in a line of its own: scripts and tests wait for it."""
    shared = config.settings()
    context = zmq.asyncio.Context(io_threads=1)
    # Each worker may have four; by default a context has 1023 in all.
    context.set(zmq.MAX_SOCKETS, _MAX_SOCKETS)
    stack.callback(context.destroy, linger=0)
    table = routes(config)
    room = Room(_CLIENT_SHARE)
    servers = []
    for number in range(config.count):
        port = config.port + number if config.port else 0
        listener = bind(config.host, port)
        publisher = _publisher(config, shared, context, Curve.of(access.fleet))
        if publisher is not None:
            stack.push_async_callback(publisher.close)
        port = listener.getsockname()[1]
        instance = Instance.create(config, shared, port, number, peers, publisher, life)
        server = Server(instance, table, room, access)
        await server.open(listener)
        stack.push_async_callback(server.close)
        servers.append(server)
    lines = [f"mock-{config.role} ready on {server.instance.url}" for server in servers]
    announce("\n".join(lines))
    return servers


def _publisher(
    config: MockConfig,
    shared: EngineSettings,
    context: zmq.asyncio.Context,
    curve: Curve | None,
) -> Publisher | None:
    if not config.publishes:
        return None
    return Publisher(
        context, config.host, blocks=shared.generates, embeddings=shared.encodes, curve=curve
    )


def routes(config: MockConfig) -> Routes:
    """What a worker of this role answers."""
    table: dict[tuple[str, str], Handler] = {
        ("GET", "/health"): status_api.health,
        ("GET", "/ready"): status_api.ready,
        ("GET", "/version"): status_api.show_version,
        ("GET", "/load"): status_api.load,
        ("GET", "/metrics"): status_api.metrics,
        ("GET", "/integrity"): status_api.integrity,
        ("GET", "/v1/models"): status_api.list_models,
        ("POST", "/tokenize"): status_api.tokenize,
        ("POST", "/detokenize"): status_api.detokenize,
        ("GET", "/faults"): status_api.show_faults,
        ("POST", "/faults"): status_api.add_faults,
        ("DELETE", "/faults"): status_api.clear_faults,
        ("POST", "/reset_prefix_cache"): status_api.reset_prefix_cache,
        ("POST", "/reset_encoder_cache"): status_api.reset_encoder_cache,
        ("POST", "/drain"): status_api.drain,
        ("POST", "/undrain"): status_api.undrain,
        ("POST", "/abort_requests"): tokens_api.abort,
        ("POST", ASK_PATH): tokens_api.kv_ask,
        ("POST", CONFIRM_PATH): tokens_api.kv_confirm,
        ("POST", RELEASE_PATH): tokens_api.kv_release,
        ("GET", EMBEDDINGS_PATH): tokens_api.embedding,
        ("POST", CHAT_PATH): openai_api.chat,
    }
    for method in ("GET", "POST"):
        table |= {(method, path): status_api.cache for path in CACHE_PATHS}
        table |= {(method, path): status_api.work for path in WORK_PATHS}
    if config.role != "encode":
        table["POST", COMPLETIONS_PATH] = openai_api.completions
    if config.dialect == "openai":
        return table
    table["GET", "/server_info"] = status_api.server_info
    table["POST", ABORT_PATH] = tokens_api.abort
    if config.role != "encode":
        table["POST", GENERATE_PATH] = tokens_api.generate
    if config.role in ("encode", "pdfusion", "any"):
        table["POST", ENCODE_PATH] = tokens_api.encode
    return table
