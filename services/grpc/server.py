"""A gRPC server's life, and our errors as its status codes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import grpc
import grpc.aio

from protocol.errors import ConfigError, TriptychError
from protocol.fleet_key import HEADER
from protocol.server_options import TlsOptions
from services.grpc.intake import Intake
from services.http.access import Access
from services.http.server import announce
from services.http.streams import Deadline

Context = Any  # grpc.aio.ServicerContext, which has no types
Check = Callable[[Context], TriptychError | None]
Unary = Callable[[Any, Context], Awaitable[Any]]
_AS = "/v1/completions"  # the route whose keys a call needs
_GRACE_S = 5.0  # seconds that calls under way may take to end
_CODES = MappingProxyType(
    {
        400: grpc.StatusCode.INVALID_ARGUMENT, 401: grpc.StatusCode.UNAUTHENTICATED,
        404: grpc.StatusCode.NOT_FOUND, 413: grpc.StatusCode.RESOURCE_EXHAUSTED,
        415: grpc.StatusCode.INVALID_ARGUMENT, 429: grpc.StatusCode.RESOURCE_EXHAUSTED,
        499: grpc.StatusCode.CANCELLED, 502: grpc.StatusCode.UNAVAILABLE,
        503: grpc.StatusCode.UNAVAILABLE, 504: grpc.StatusCode.DEADLINE_EXCEEDED,
    }
)  # fmt: skip


@dataclass(frozen=True)
class Bounds:
    """`max_bytes`: of one message. `max_calls`: at once; further ones are refused."""

    max_bytes: int
    max_calls: int


@contextlib.asynccontextmanager
async def serving(
    name: str, host: str, port: int, services: list[Any], bounds: Bounds, tls: TlsOptions
) -> AsyncGenerator[int, None]:
    """Serve while the context lasts; gives the port, which is another one for 0. `ConfigError` if
    it cannot be listened on."""
    server = grpc.aio.server(
        maximum_concurrent_rpcs=bounds.max_calls,
        options=[
            ("grpc.max_receive_message_length", bounds.max_bytes),
            ("grpc.max_send_message_length", bounds.max_bytes),
            # Else two processes on one port would each get a part of the calls, unseen.
            ("grpc.so_reuseport", 0),
            # What no handler reads yet stays with its client, but for 64 KiB of each call.
            ("grpc.http2.bdp_probe", 0),
        ],
    )
    server.add_generic_rpc_handlers(tuple(services))
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if tls.serves_tls:
            bound = server.add_secure_port(address, _credentials(tls))
        else:
            bound = server.add_insecure_port(address)
    # All that the library raises for an address, without a reason.
    except RuntimeError:
        raise ConfigError(f"{name} gRPC: cannot listen on {address}") from None
    await server.start()
    announce(f"{name} gRPC ready on {host}:{bound}")
    try:
        yield bound
    finally:
        await server.stop(_GRACE_S)


def _credentials(tls: TlsOptions) -> Any:
    key = Path(tls.ssl_keyfile or tls.ssl_certfile).read_bytes()
    chain = Path(tls.ssl_certfile).read_bytes()
    authority = Path(tls.ssl_ca_certs).read_bytes() if tls.ssl_ca_certs else None
    return grpc.ssl_server_credentials(
        [(key, chain)], root_certificates=authority, require_client_auth=authority is not None
    )


def status_of(error: TriptychError) -> Any:
    return _CODES.get(error.status, grpc.StatusCode.INTERNAL)


def told(error: TriptychError) -> str:
    """The message as a client may see it."""
    message: str = error.to_openai()["error"]["message"]
    return message


async def refuse(context: Context, error: TriptychError, trailing: Any = ()) -> NoReturn:
    """End the call with an error. One whose client has gone, or whose deadline has passed, can be
    told nothing; it ends as cancelled, which gRPC itself would do a moment later."""
    try:
        await context.abort(status_of(error), told(error), trailing)
    except grpc.aio.InternalError:
        raise asyncio.CancelledError from error
    raise AssertionError("abort raises")


def unary(work: Callable[[Context], Awaitable[Any]]) -> Any:
    """The handler of a method that answers once; errors of our tree become status codes. `work`
    reads the call's message by itself, as the client's keys come first."""

    async def answered(messages: Any, context: Context) -> Any:
        try:
            return await work(context)
        except TriptychError as error:
            await refuse(context, error)

    return answered


def checked(access: Access) -> Check:
    """Asks for the keys that completions over HTTP need."""

    def check(context: Context) -> TriptychError | None:
        if not access.closed:
            return None
        fleet, client = (
            call_metadata(context, HEADER.lower()),
            call_metadata(context, "authorization"),
        )
        return access.judge(_AS, fleet, client, method="POST")

    return check


def methods(service: str, handlers: dict[str, Any]) -> Any:
    """The handlers of one service, by method."""
    return grpc.method_handlers_generic_handler(service, handlers)


def empty_handler(work: Callable[[Context], Awaitable[Any]], response: Any) -> Any:
    """Of a method whose message says nothing, and is never received."""
    # As a stream: gRPC reads the one message of other methods before it asks the handler.
    return grpc.stream_unary_rpc_method_handler(unary(work), None, response.SerializeToString)


def message_handler(work: Unary, intake: Intake, request: Any, response: Any) -> Any:
    """Of a method that is open to all and answers one small message."""

    async def read(context: Context) -> Any:
        async with intake.message(context, request) as message:
            return await work(message or request(), context)

    return empty_handler(read, response)


def call_metadata(context: Context, name: str) -> bytes:
    """A header of the call, b"" if there is none."""
    for key, value in context.invocation_metadata() or ():
        # Names come in lower case.
        if key == name:
            return value if isinstance(value, bytes) else str(value).encode()
    return b""


@contextlib.asynccontextmanager
async def within(deadline: Deadline) -> AsyncGenerator[None, None]:
    try:
        async with asyncio.timeout(deadline.left_s):
            yield
    except TimeoutError:
        raise deadline.exceeded() from None
