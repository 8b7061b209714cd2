"""Which fleets are checked, on which traces, within which objectives, and what is predicted."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from types import MappingProxyType

from benchmarks.simulate.bench import Bench
from benchmarks.simulate.cases import case
from benchmarks.simulate.contenders import OURS, Contender
from benchmarks.simulate.metrics import Figures, figures
from benchmarks.simulate.profile import Profile
from benchmarks.simulate.prompts import Session
from benchmarks.simulate.records import Objectives, Shape, Span
from benchmarks.simulate.simulation import Simulation
from protocol.registry import StageRole
from services.mock.timing import Timing

TRACE_SEED = 1
# Decode steps of some 45 ms: what proxy, master and mocks compute themselves is little beside it.
_TIMING = Timing(
    encode_base_ms=20.0, encode_patch_ms=0.3, prefill_base_ms=10.0, prefill_token_ms=0.8,
    prefill_cached_ms=0.05, decode_base_ms=25.0, decode_request_ms=2.5, decode_context_ms=0.0004,
    kv_block_ms=2.0, ec_token_ms=0.02,
)  # fmt: skip
_LIFETIMES = 11.0  # ten also where answers take a little longer than forecast
_WARM_S = MappingProxyType({"multi_turn": 60.0})


def slow() -> Profile:
    """Workers a few times slower than a GPU's, so that two cores can run a fleet of mocks."""
    return Profile("slow", _TIMING)


@dataclass(frozen=True)
class Checked:
    """`ttft_s`, `tpot_s`: what requests must keep. `elastic`: all workers are of the role any, and
    begin as `shape` says."""

    trace: str
    shape: Shape
    ttft_s: float
    tpot_s: float
    elastic: bool = False

    @property
    def fleet(self) -> str:
        return f"{self.shape.total} any" if self.elastic else str(self.shape)

    @property
    def name(self) -> str:
        return f"{self.fleet} {self.trace}"

    @property
    def counts(self) -> dict[str, int]:
        """Workers by their roles, encoders first."""
        if self.elastic:
            return {"any": self.shape.total}
        return {role: getattr(self.shape, role) for role in ("encode", "prefill", "decode")}

    @property
    def begins(self) -> list[StageRole]:
        """Which roles the workers of the role any serve at first."""
        return self.shape.stages() if self.elastic else []

    @property
    def contender(self) -> Contender:
        return Contender(OURS, self.shape, elastic=self.elastic)

    def aims(self, profile: Profile) -> Objectives:
        return Objectives(profile, ttft_s=self.ttft_s, tpot_s=self.tpot_s)

    def bench(self, profile: Profile) -> Bench:
        """As the planner simulates it."""
        made = case(self.trace, profile, self.shape.total)
        return Bench(made.with_aims(self.aims(profile)), profile)

    def sustained(self, profile: Profile) -> float:
        """Requests/s that the planner says the fleet sustains within its objectives."""
        bench = self.bench(profile)
        return bench.sustained(self.contender, TRACE_SEED, bench.case.pace)

    def span(self, seconds: float) -> Span:
        """`seconds` measured, longer until they are so many median lifetimes as forecast."""
        return Span(_WARM_S.get(self.trace, 20.0), seconds, _LIFETIMES, 3.0 * seconds)


CHECKED = (
    Checked("chat", Shape(0, 1, 2), 4.0, 0.06),
    Checked("chat", Shape(0, 2, 2), 2.5, 0.06),
    Checked("multi_turn", Shape(0, 1, 2), 2.5, 0.06),
    Checked("multi_turn", Shape(0, 2, 2), 2.5, 0.06),
    Checked("pictures", Shape(2, 1, 2), 7.0, 0.06),
    Checked("pictures", Shape(2, 1, 2), 7.0, 0.06, elastic=True),
    Checked("chat", Shape(0, 1, 2), 4.0, 0.06, elastic=True),
)


@dataclass(frozen=True)
class Forecast:
    """`end_s`: when what counts has ended; `found`: figures, one for each seed of chance."""

    end_s: float
    found: tuple[Figures, ...]


def forecast(
    checked: Checked, profile: Profile, sessions: Iterable[Session], pace: float, span: Span,
    seeds: Iterable[int],
) -> Forecast:  # fmt: skip
    """The same requests again and again; how long workers take and which ones the master draws
    differ by the seed. The first run says how long is measured."""
    found: list[Figures] = []
    for seed in seeds:
        config, aims = checked.contender.config(seed), checked.aims(profile)
        simulation = Simulation(profile, checked.shape, config, aims, seed, elastic=checked.elastic)
        records = simulation.run(sessions, pace, span)
        begin, end = simulation.measured
        found.append(figures(records, end - begin, simulation.clock.now))
        span = replace(span, least_s=end - begin, most_s=end - begin)
    return Forecast(span.warm_s + span.least_s, tuple(found))


def in_time(sessions: Iterable[Session], pace: float, until_s: float) -> list[Session]:
    """Those that begin before."""
    return list(itertools.takewhile(lambda one: one.start / pace < until_s, sessions))
