"""Who may ask a server for what, looked at before the application sees a request.

The fleet key opens everything, an API key what is for clients, and nothing is needed for the routes
that are `opened`. All are compared in constant time, or by digests that cannot be foreseen.
"""

from __future__ import annotations

import ipaddress
import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from blake3 import blake3
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from protocol.errors import ConfigError, TriptychError, Unauthorized
from protocol.fleet_key import HEADER, NO_KEY, FleetKey, no_fleet_key
from services.http.errors import OUTCOME, error_response

STATUS_PATHS = frozenset(
    {
        "/", "/live", "/health", "/ready", "/version", "/metrics", "/ping", "/status",
        "/health_check", "/GraphService/cm2_status", "/SearchService/cm2_status",
    }
)  # fmt: skip
"""Open to all callers: what load balancers and monitors ask. `/` is open to be looked at alone:
what is posted there is a prompt of RTP-LLM's clients."""
_SAFE = ("GET", "HEAD")
_FLEET_HEADER = HEADER.encode()
_DETAILS = ("/health", "/metrics")  # name models, workers and load
_FOR_CLIENTS = (
    "/", "/chat/completions", "/chat/render", "/tokenizer/encode", "/tokenize", "/detokenize",
    "/tokenizer_info", "/pooling", "/classify", "/score", "/rerank", "/v2/rerank", *_DETAILS,
)  # fmt: skip
LOAD_ADAPTER_PATH, UNLOAD_ADAPTER_PATH = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
# Under /v1/, but weights of the operator are no business of clients.
_FOR_OPERATORS = (LOAD_ADAPTER_PATH, UNLOAD_ADAPTER_PATH)
_SCHEME, _BEARER = b"bearer ", b"Bearer "


class ApiKeys:
    """The keys of clients; False if there are none. How long it takes to look one up says nothing
    of the keys: only digests with a secret of the process are compared."""

    def __init__(self, keys: Sequence[str] = ()) -> None:
        self._secret = secrets.token_bytes(32)
        self._digests = frozenset(self._digest(key.encode()) for key in keys)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def _digest(self, key: bytes) -> bytes:
        # With a secret of the process no client can aim at a digest that begins like a real one.
        return blake3(key, key=self._secret).digest()

    def refusal(self, authorization: bytes) -> Unauthorized | None:
        """What a client is told whose `Authorization` header this is; None if it may come in."""
        # The name of a scheme has no case (RFC 9110, 11.1).
        if authorization[: len(_SCHEME)].lower() != _SCHEME:
            return Unauthorized("an API key is needed: Authorization: Bearer KEY")
        if self._digest(authorization[len(_SCHEME) :].strip()) not in self._digests:
            return Unauthorized("the API key is not valid")
        return None


@dataclass(frozen=True)
class Access:
    """What each route of a server needs. `opened` are exact names, so that a route that is
    forgotten is closed. Where there is no fleet key an API key opens all."""

    fleet: FleetKey = NO_KEY
    clients: ApiKeys = field(default_factory=ApiKeys)
    opened: frozenset[str] = STATUS_PATHS
    protect_metrics: bool = False

    def __post_init__(self) -> None:
        if self.protect_metrics and not self.closed:
            raise ConfigError("--protect-metrics needs --api-key or --fleet-key")

    @property
    def closed(self) -> bool:
        """Whether anything needs a key."""
        return bool(self.fleet or self.clients)

    def refusal(self, scope: Scope) -> TriptychError | None:
        """What a request is answered with; None if it may come in."""
        headers = _header(scope, _FLEET_HEADER), _client_key(scope)
        return self.judge(scope["path"], *headers, method=scope["method"])

    def judge(
        self, path: str, fleet_key: bytes, authorization: bytes, method: str = "GET"
    ) -> TriptychError | None:
        """`refusal` by the values of the two headers, b"" for none."""
        opened = path in self.opened and (path != "/" or method in _SAFE)
        if opened and not (self.protect_metrics and path in _DETAILS):
            return None
        # Before the client's key is judged: proxies send theirs to routes for clients, too.
        if self.fleet and self.fleet.admits(fleet_key):
            return None
        if self.clients and (_is_for_clients(path) or not self.fleet):
            return self.clients.refusal(authorization)
        return no_fleet_key()


class Gate:
    """ASGI application in front of another."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The server's own start and end come by here, and have no path.
        error = self._access.refusal(scope) if scope["type"] == "http" else None
        if error is None:
            await self._app(scope, receive, send)
        # Load balancers look at the status; what stands in the body names the fleet.
        elif scope["path"] == "/health":
            await self._app(scope, receive, _without_body(send))
        else:
            scope[OUTCOME] = error.code
            await error_response(error)(scope, receive, send)


def gated(app: ASGIApp, access: Access) -> ASGIApp:
    """`app` behind the keys, or as it is if there are none."""
    return Gate(app, access) if access.closed else app


def _without_body(send: Send) -> Send:
    """The status of an answer alone."""

    async def bare(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [(b"content-length", b"0")]}
        elif message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await send(message)

    return bare


def _header(scope: Scope, wanted: bytes) -> bytes:
    """The first of this name, b"" if there is none."""
    return next((value for name, value in scope["headers"] if name == wanted), b"")


def _client_key(scope: Scope) -> bytes:
    """`Authorization`, or what Anthropic's clients send instead."""
    key = _header(scope, b"x-api-key")
    return _header(scope, b"authorization") or (_BEARER + key if key else b"")


def _is_for_clients(path: str) -> bool:
    named = path.startswith("/v1/") and path not in _FOR_OPERATORS
    return named or path in _FOR_CLIENTS


def check_reach(
    logger: logging.Logger,
    key: str,
    given: bool,
    addresses: Sequence[tuple[str, str]],
    allowed: bool,
) -> None:
    """Without a key, other machines must not reach a process: `ConfigError`, or a warning if that
    is `allowed`.

    `key`: the flag of the key, `given`: whether there is one. `addresses`: what the process listens
    on, behind the flag that says so.
    """
    if given:
        return
    open_to_all = [f"{flag} {host}" for flag, host in addresses if not _is_loopback(host)]
    if not open_to_all:
        logger.info("without %s only this machine is served: loopback addresses alone", key)
        return
    found = ", ".join(dict.fromkeys(open_to_all))
    if not allowed:
        raise ConfigError(
            f"{found}: other machines would reach a process that asks for no key; give {key} or"
            f" {key}-file, or --allow-unprotected to take that on, or listen on 127.0.0.1"
        )
    logger.warning("without %s every client that reaches %s is served; see SECURITY.md", key, found)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
