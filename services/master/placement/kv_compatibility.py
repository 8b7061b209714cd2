"""Prefill and decode workers that can hand KV to each other: those of one compatibility."""

from __future__ import annotations

import math

import numpy as np

from services.master.fleet.columns import Floats
from services.master.fleet.pool import Pool
from services.master.placement.costs import least


def mixed(prefill: Pool, decode: Pool) -> bool:
    """Whether some of these workers cannot hand KV to some others, as while versions change."""
    return len((prefill.kinds_of_kv | decode.kinds_of_kv) - {""}) > 1


def apart(prefill: Pool, decode: Pool) -> bool:
    """Whether no usable prefill worker can hand over to a usable decode worker."""
    return mixed(prefill, decode) and least(prefill.penalty + partnered(prefill, decode)) > 0.0


def partnered(prefill: Pool, decode: Pool, barred: Floats | None = None) -> Floats:
    """Infinite for prefill workers whose KV no usable decode worker takes, `barred` ones left out.
    [rows]"""
    penalty = decode.penalty if barred is None else decode.penalty + barred
    taken = {decode.kv_kinds[row] for row in np.flatnonzero(penalty == 0.0)}
    anything = "" in taken
    return _barred([anything or not kind or kind in taken for kind in prefill.kv_kinds])


def takers(decode: Pool, kind: str) -> Floats:
    """Infinite for decode workers that do not take KV of a `kind`; "" is of an unknown one, which
    anybody may take. [rows]"""
    return _barred([not kind or not other or other == kind for other in decode.kv_kinds])


def _barred(fits: list[bool]) -> Floats:
    return np.where(np.array(fits, bool), 0.0, math.inf)
