"""Prefill workers: prompts in, KV blocks and the first token out."""

from __future__ import annotations

from services.worker import chat, generate
from services.worker.worker import RoleSpec


def role() -> RoleSpec:
    return RoleSpec(
        name="prefill",
        parts=("language",),
        ec_transport="shm",
        kv_transport="shm",
        routers=(generate.router, chat.router),
    )
