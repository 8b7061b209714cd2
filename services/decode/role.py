"""Decode workers: KV blocks in, the rest of the tokens out; without KV they prefill too."""

from __future__ import annotations

from services.worker import chat, generate
from services.worker.worker import RoleSpec


def role() -> RoleSpec:
    return RoleSpec(
        name="decode",
        parts=("language",),
        ec_transport="shm",
        kv_transport="shm",
        routers=(generate.router, chat.router),
    )
