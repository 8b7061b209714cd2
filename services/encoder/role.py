"""Encode workers: pictures in, embeddings out."""

from __future__ import annotations

from services.worker import chat, encode
from services.worker.worker import RoleSpec


def role() -> RoleSpec:
    return RoleSpec(
        name="encode",
        parts=("vision",),
        ec_transport="shm",
        kv_transport="local",
        routers=(encode.router, chat.encoder_router),
    )
