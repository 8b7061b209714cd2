"""One worker that does it all: encode, prefill and decode in one engine."""

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
