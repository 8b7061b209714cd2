"""Who asks over gRPC: the same caller as over HTTP (`services.http.callers`)."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import unquote

from services.frontend.media.lookups import Caller
from services.frontend.spec import RenderedRequest
from services.grpc.server import Context, call_metadata
from services.http.callers import MAX_SESSION, SESSION_HEADER, tenant_of
from services.http.streams import Deadline


def caller_of_call(context: Context) -> Caller:
    """By the address of its connection and the key in its metadata."""
    key = call_metadata(context, "authorization") or call_metadata(context, "x-api-key")
    return Caller(address_of(context.peer()), tenant_of(key))


def address_of(peer: str) -> str:
    """The host of gRPC's name for a connection: `ipv4:127.0.0.1:50` or `ipv6:%5B::1%5D:50`; "" of
    one that has none."""
    family, _, place = unquote(peer).partition(":")
    # Without the port: each connection of a client has another.
    return place.rpartition(":")[0].strip("[]") if family in ("ipv4", "ipv6") else ""


def with_call(rendered: RenderedRequest, context: Context, deadline: Deadline) -> RenderedRequest:
    """The request with its tenant, its conversation (`x-session-id` of the metadata, or as the
    request says) and its deadline; `DeadlineExceeded` if that has passed."""
    named = call_metadata(context, SESSION_HEADER).decode("latin-1") or rendered.session
    return replace(
        rendered,
        generate=deadline.bounding(rendered.generate),
        tenant=caller_of_call(context).tenant,
        session=named[:MAX_SESSION],
    )
