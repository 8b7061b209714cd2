"""Which trace goes to which fleet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np

from benchmarks.simulate import mooncake
from benchmarks.simulate.profile import Profile
from benchmarks.simulate.prompts import PATCHES_PER_TOKEN, TraceRequest
from benchmarks.simulate.records import Shape
from benchmarks.simulate.study import Case
from benchmarks.simulate.traces import TRACES

COUNT = 600
BARS = MappingProxyType({"multi_turn": 1.15, "pictures": 1.15})
_HITS = 0.5  # share of prompts that caches are taken to save
_SPLITS = (0.5, 0.3, 0.7)  # the same of pictures
_BATCH = 8
_SPARE = 1.2  # of decode workers, so that placement before them is what counts


def case(name: str, profile: Profile, workers: int, count: int = COUNT) -> Case:
    """One of `TRACES` on a fleet of about so many workers."""
    maker = TRACES[name]
    sample = maker(count, profile.block_size, 0)
    return _case(
        name, profile, workers, sample, lambda s, n: maker(count * n, profile.block_size, s)
    )


def mooncake_case(path: Path, profile: Profile, workers: int) -> Case:
    """A file of Mooncake's format; every seed has the same requests."""
    trace = mooncake.read(path.read_bytes().splitlines(), profile.block_size)
    pace = len(trace) / max(1e-9, trace[-1].arrival)
    for request in trace:
        request.arrival *= pace
    return _case(path.stem, profile, workers, trace, lambda seed, times: trace)


def _case(
    name: str, profile: Profile, workers: int, sample: Sequence[TraceRequest],
    make: Callable[[int, int], Sequence[TraceRequest]],
) -> Case:  # fmt: skip
    shapes, pace = _fleets(profile, workers, sample)
    return Case(name, shapes, pace, make)


def _fleets(
    profile: Profile, workers: int, trace: Sequence[TraceRequest]
) -> tuple[tuple[Shape, ...], float]:
    """Workers in proportion to what the stages have to do, for each of `_SPLITS`, and the load they
    should carry. Decode workers are as many in all."""
    timing = profile.timing
    encode = float(np.mean([
        sum(timing.encode_s(i.tokens * PATCHES_PER_TOKEN, i.tokens) for i in r.items)
        for r in trace
    ]))  # fmt: skip
    prefill = float(np.mean([timing.prefill_s(r.tokens, 0) for r in trace]))
    decode = _SPARE * float(np.mean([
        timing.decode_s(_BATCH, _BATCH * r.tokens, 1) / _BATCH * r.output for r in trace
    ]))  # fmt: skip
    least = 2 if encode else 1
    kept, encodes = (1 - _HITS) * prefill, [(1 - share) * encode for share in _SPLITS]
    decoders = round(workers * decode / (decode + kept + encodes[0]))
    rest = max(2 * least, workers - decoders)
    prefills = [max(2, round(rest * kept / (kept + share))) for share in encodes]
    shapes = dict.fromkeys(Shape(rest - count, count, decoders) for count in prefills)
    return tuple(shapes), 0.8 * prefills[0] / kept
