"""Workers that can hand KV or embeddings to each other: those of one compatibility."""

from __future__ import annotations

import math

import numpy as np

from protocol.errors import IncompatiblePeer, Unavailable
from protocol.refs import fits
from services.master.fleet.columns import Floats
from services.master.fleet.pool import Pool
from services.master.placement.costs import least


def kv_mixed(prefill: Pool, decode: Pool) -> bool:
    """Whether some of these workers cannot hand KV to some others, as while versions change."""
    return len((prefill.kinds_of_kv | decode.kinds_of_kv) - {""}) > 1


def kv_apart(prefill: Pool, decode: Pool) -> bool:
    """Whether no usable prefill worker can hand over to a usable decode worker."""
    return kv_mixed(prefill, decode) and least(prefill.penalty + partnered(prefill, decode)) > 0.0


def partnered(prefill: Pool, decode: Pool, barred: Floats | None = None) -> Floats:
    """Infinite for prefill workers whose KV no usable decode worker takes, `barred` ones left out.
    [rows]"""
    penalty = decode.penalty if barred is None else decode.penalty + barred
    taken = {decode.kv_kinds[row] for row in np.flatnonzero(penalty == 0.0)}
    anything = "" in taken
    return _barred([anything or not kind or kind in taken for kind in prefill.kv_kinds])


def takers(decode: Pool, kind: str) -> Floats:
    """Infinite for decode workers that do not take KV of a `kind`; "" is an unknown kind, which
    every worker may take. [rows]"""
    return _barred([not kind or not other or other == kind for other in decode.kv_kinds])


def _barred(able: list[bool]) -> Floats:
    return np.where(np.array(able, bool), 0.0, math.inf)


def ec_mixed(encode: Pool, pool: Pool) -> bool:
    """Whether some workers of a pool cannot read what some encoders make."""
    return encode.count > 0 and len((encode.kinds_of_ec | pool.kinds_of_ec) - {""}) > 1


def readers(encode: Pool, pool: Pool) -> Floats:
    """Infinite for workers that can read no usable encoder's embeddings, nor encode by themselves;
    for none where no encoder is usable. [rows]"""
    made = {encode.ec_kinds[row] for row in np.flatnonzero(encode.penalty == 0.0)}
    anything = not made or "" in made
    blind = [not (anything or not kind or kind in made) for kind in pool.ec_kinds]
    return np.where(np.array(blind, bool) & (pool.encodes == 0.0), math.inf, 0.0)


def makers(encode: Pool, kind: str) -> Floats:
    """Infinite for encoders whose embeddings a worker of a `kind` cannot read. [rows]"""
    return _barred([fits(kind, made) for made in encode.ec_kinds])


def unreadable() -> Unavailable:
    """No worker that could prefill a request with media can read what an encoder makes."""
    return Unavailable(
        "no encode worker makes embeddings that a worker which is to read them can read: give all "
        "of them the same --model, --dtype and transport in --ec-transfer-config",
        code=IncompatiblePeer.code,
        retry_after_s=1.0,
    )
