"""One worker that does it all: encode, prefill and decode in one engine; or each by turns."""

from __future__ import annotations

from services.worker import chat, encode, generate
from services.worker.worker import RoleSpec


def role() -> RoleSpec:
    return RoleSpec(
        name="pdfusion",
        parts=("vision", "language"),
        ec_transport="local",
        kv_transport="local",
        routers=(encode.router, generate.router, chat.router),
    )


def any_role() -> RoleSpec:
    """A worker that encodes, prefills or decodes, as a master says from time to time. It has all
    parts, like one that does it all, and moves embeddings and KV, like those of one stage."""
    return RoleSpec(
        name="any",
        parts=("vision", "language"),
        ec_transport="shm",
        kv_transport="shm",
        routers=(encode.router, generate.router, chat.router),
        stages=("decode", "prefill", "encode"),
    )
