"""`python -m services.master`."""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import uvloop

from protocol.errors import ConfigError
from protocol.logs import configure_logging
from protocol.placement import SCHEDULE_PATH
from protocol.server_options import CorsOptions
from protocol.settings import describe, resolve
from protocol.termination import closed_by_sigterm
from services.http.access import Access, check_reach, gated
from services.http.browsers import for_browsers
from services.http.open_files import raise_limit
from services.http.records import Recorded, make_tracer
from services.http.server import bind, serve
from services.master.api.app import OPENED, create_app
from services.master.api.service import MasterService
from services.master.config import MasterConfig

logger = logging.getLogger("master")
_NAMESPACE = re.compile(r"[A-Za-z0-9._-]{1,64}")
_REDIS_SCHEMES = ("redis://", "rediss://", "unix://")
_YOUNG = 20_000  # objects more than were freed, before garbage is looked for among the young
_OLDER = 50  # collections of one generation to a collection of the next


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 after a clean stop, 2 for a bad configuration, 143 for SIGTERM before it
    serves."""
    try:
        config = resolve(MasterConfig, sys.argv[1:] if argv is None else argv, prog="master")
        _check(config)
        configure_logging("master", config.log_level, config.log_format)
        shown = replace(config, redis_url=_without_password(config.redis_url))
        logger.info("configuration:\n%s", describe(shown))
        collect_rarely()
        raise_limit()
        uvloop.run(closed_by_sigterm(run(config)))
    except ConfigError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 2
    return 0


def collect_rarely() -> None:
    """Have garbage collection find little to do, so that a placement never waits for a long one:
    what is loaded stays, and is not looked at again; young objects die by their reference counts,
    so they are looked at rarely."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _OLDER, _OLDER)


def _check(config: MasterConfig) -> None:
    if not _NAMESPACE.fullmatch(config.redis_namespace):
        raise ConfigError(
            "--redis-namespace: 1 to 64 letters, digits, '.', '_' and '-' are expected"
        )
    if config.redis_url:
        if not config.redis_url.startswith(_REDIS_SCHEMES):
            raise ConfigError(f"--redis-url: it must start with one of {', '.join(_REDIS_SCHEMES)}")
        # The client takes a tenth of a second to import.
        from services.master.replication.redis_io import check_redis_url

        check_redis_url(config.redis_url)


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    _, at, host = parts.netloc.rpartition("@")
    netloc = f"***{at}{host}" if at else host
    # The client takes `password` and `ssl_password` from the query too.
    options = parse_qsl(parts.query, keep_blank_values=True)
    shown = [(name, "***" if "password" in name else value) for name, value in options]
    # Without a fragment: it means nothing here but a password whose '#' was not escaped.
    parts = parts._replace(netloc=netloc, query=urlencode(shown, safe="*/"), fragment="")
    return urlunsplit(parts)


async def run(config: MasterConfig) -> None:
    """Serve until told to stop. Workers need not be up yet."""
    key = config.read_fleet_key()
    access = Access(key, opened=OPENED, protect_metrics=config.protect_metrics)
    config.check_tls()
    check_reach(
        logger, "--fleet-key", bool(key), [("--host", config.host)], config.allow_unprotected
    )
    # Bound first: where the port is 0 only the listener knows the one that clients are told.
    with bind(config.host, config.port) as listener:
        service = MasterService(config, key)
        host, port = listener.getsockname()[:2]
        app = gated(create_app(service, f"{host}:{port}"), access)
        app, life = for_browsers(app, CorsOptions()), service.life
        # What is traced is the proxy's to decide.
        tracer = make_tracer(config, "master", f"{host}:{port}", share=0.0)
        if tracer is not None:
            app = Recorded(app, (SCHEDULE_PATH,), tracer.end, tracer.begin)
        await serve(app, listener, "master", tls=config, life=life)
        if tracer is not None:
            await asyncio.to_thread(tracer.close)


if __name__ == "__main__":
    sys.exit(main())
