"""The roles of workers: which parts of the model each loads, how it reaches others, its routes.

python -m services.encoder     services.prefill     services.decode
python -m services.pdfusion    services.pdfusion.any
"""

from __future__ import annotations

from services.worker import chat, encode, generate
from services.worker.worker import RoleSpec

ENCODE = RoleSpec(
    name="encode",
    parts=("vision",),
    ec_transport="shm",
    kv_transport="local",
    routers=(encode.router, chat.encoder_router),
)
"""Pictures in, embeddings out."""

PREFILL = RoleSpec(
    name="prefill",
    parts=("language",),
    ec_transport="shm",
    kv_transport="shm",
    routers=(generate.router, chat.router),
)
"""Prompts in, KV blocks and the first token out."""

DECODE = RoleSpec(
    name="decode",
    parts=("language",),
    ec_transport="shm",
    kv_transport="shm",
    routers=(generate.router, chat.router),
)
"""KV blocks in, the rest of the tokens out; without KV they prefill too."""

PDFUSION = RoleSpec(
    name="pdfusion",
    parts=("vision", "language"),
    ec_transport="local",
    kv_transport="local",
    routers=(encode.router, generate.router, chat.router),
)
"""One worker that does it all: encode, prefill and decode in one engine."""

ANY = RoleSpec(
    name="any",
    parts=("vision", "language"),
    ec_transport="shm",
    kv_transport="shm",
    routers=(encode.router, generate.router, chat.router),
    stages=("decode", "prefill", "encode"),
)
"""A worker that encodes, prefills or decodes, as a master says from time to time. It has all parts,
like one that does it all, and moves embeddings and KV, like those of one stage."""
