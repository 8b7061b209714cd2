"""The fleet's secret on the routes of a server, before the application sees a request."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Collection, Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from protocol.fleet_key import HEADER, FleetKey, no_fleet_key
from services.http.errors import error_response

STATUS_PATHS = frozenset({"/live", "/health", "/ready", "/version", "/metrics"})
"""Open to everybody: what load balancers and monitors ask."""
_HEADER = HEADER.encode()


class FleetGate:
    """ASGI application in front of another: every path needs the fleet key but those that are
    `opened`, by their exact names, so that a route nobody thought of is closed."""

    def __init__(self, app: ASGIApp, key: FleetKey, opened: Collection[str] = STATUS_PATHS) -> None:
        self._app = app
        self._key = key
        self._opened = frozenset(opened)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._admits(scope):
            await self._app(scope, receive, send)
        else:
            await error_response(no_fleet_key())(scope, receive, send)

    def _admits(self, scope: Scope) -> bool:
        return scope["path"] in self._opened or brings_key(scope, self._key)


def brings_key(scope: Scope, key: FleetKey) -> bool:
    """Whether a request has the key in its header; one that has several, whether the first is."""
    return key.admits(next((value for name, value in scope["headers"] if name == _HEADER), b""))


def gated(app: ASGIApp, key: FleetKey, opened: Collection[str] = STATUS_PATHS) -> ASGIApp:
    """`app` behind the key, or as it is if there is none."""
    return FleetGate(app, key, opened) if key else app


def warn_if_open(logger: logging.Logger, key: FleetKey, hosts: Sequence[str]) -> None:
    """One line if others than this machine can reach a process that asks for no key."""
    reachable = sorted({host for host in hosts if not _is_loopback(host)})
    if reachable and not key:
        logger.warning(
            "without --fleet-key whoever reaches %s controls this process and reads what it"
            " serves; see SECURITY.md",
            ", ".join(reachable),
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
