"""Which workload goes to which fleets, and when it is warm."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from benchmarks.simulate.arrivals import Replay
from benchmarks.simulate.profile import Profile
from benchmarks.simulate.prompts import PATCHES_PER_TOKEN, Session, TraceRequest
from benchmarks.simulate.public_traces import read, repeated
from benchmarks.simulate.records import Objectives, Shape, Span
from benchmarks.simulate.study_results import Case
from benchmarks.simulate.traces import TRACES

BARS = MappingProxyType({"multi_turn": 1.15, "pictures": 1.15, "new_pictures": 1.15})
_SAMPLE = 400
_LEAST_REQUESTS = 400  # measured: a share of 0.9 of these is known within 0.03
_OF_A_FILE = 1000  # requests measured: some come in bursts, of which a run must hold several
# Sessions of several turns come and go for a while before they are as many as they will be.
_WARM = MappingProxyType({"multi_turn": 60.0, "agents": 120.0})
_WARM_S = 20.0
_EARLY = 0.5
# What caches save of prompts and of pictures, and how full batches of decode workers are: no one
# knows before.
_FEW, _MANY = 1 / 8, 1 / 2
_GUESSES = ((0.2, 0.0, _FEW), (0.5, 0.5, _FEW), (0.75, 0.5, _FEW), (0.5, 0.2, _MANY),
            (0.85, 0.8, _FEW))  # fmt: skip


def case(name: str, profile: Profile, workers: int, seed: int = 0) -> Case:
    """One of `TRACES` on fleets of so many workers."""
    maker = TRACES[name]
    return _case(name, profile, workers, seed, lambda s: Replay(maker(profile.block_size, s)))


def file_case(path: Path, profile: Profile, workers: int) -> Case:
    """A public trace in a file, from another place for every seed. `ValueError` says what is wrong
    with the file."""
    lines = read(path)
    found = _case(
        path.stem, profile, workers, 0,
        lambda seed: Replay(repeated(lines, profile.block_size, seed)),
    )  # fmt: skip
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return replace(found, digest=digest, least=_OF_A_FILE)


def _case(
    name: str, profile: Profile, workers: int, seed: int, make: Callable[[int], Replay]
) -> Case:
    sample = requests(make(seed), _SAMPLE)
    shapes, pace = fleets(profile, workers, sample)
    span = Span(warm_s=_WARM.get(name, _WARM_S), hopeless=_EARLY)
    aims = Objectives.relative(profile, sample)
    return Case(name, shapes, pace, span, aims, make, least=_LEAST_REQUESTS)


def requests(sessions: Iterable[Session], count: int) -> list[TraceRequest]:
    """The first `count` requests of some sessions."""
    turns = (turn for session in sessions for turn in session.turns)
    return list(itertools.islice(turns, count))


def fleets(
    profile: Profile, workers: int, sample: Sequence[TraceRequest]
) -> tuple[tuple[Shape, ...], float]:
    """Fleets of `workers` workers in proportion to what the stages have to do, for several guesses
    of what caches save; and requests/s that the first could carry."""
    busy = [
        stage_seconds(profile, sample, prefix, media, max(1, round(full * profile.max_running)))
        for prefix, media, full in _GUESSES
    ]
    guessed = list(dict.fromkeys(_shape(workers, *seconds) for seconds in busy))
    # A policy that finds pictures in caches may do with an encoder less, another needs to prefill.
    spare = "encode" if guessed[0].encode else "decode"
    guessed += [
        replace(s, **{spare: getattr(s, spare) - 1}, prefill=s.prefill + 1)
        for s in guessed
        if getattr(s, spare) > 1
    ]
    shapes = tuple(dict.fromkeys(guessed))
    return shapes, 0.7 * shapes[0].prefill / busy[0][1]


def stage_seconds(
    profile: Profile, sample: Sequence[TraceRequest], prefix: float, media: float, batch: int
) -> tuple[float, float, float]:
    """Seconds that a mean request takes of encode, prefill and decode workers if caches save the
    shares `prefix` of prompts and `media` of pictures, and `batch` requests decode together."""
    timing = profile.timing
    encode = np.mean([
        sum(timing.encode_s(i.tokens * PATCHES_PER_TOKEN, i.tokens) for i in r.items)
        for r in sample
    ])  # fmt: skip
    prefill = np.mean([timing.prefill_s(r.tokens, 0) for r in sample])
    decode = np.mean([
        timing.decode_s(batch, batch * r.tokens, 1) / batch * r.output for r in sample
    ])  # fmt: skip
    return float(encode) * (1 - media), float(prefill) * (1 - prefix), float(decode)


def _shape(workers: int, encode: float, prefill: float, decode: float) -> Shape:
    """At least one worker for each stage that there is work for."""
    each = workers / (encode + prefill + decode)
    encoders = max(1, round(encode * each)) if encode else 0
    prefills = max(1, round(prefill * each))
    prefills = min(prefills, workers - encoders - 1)
    return Shape(encoders, prefills, workers - encoders - prefills)
