"""What a run was worth: latencies, the share within the objectives, hit rates, balance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.simulate.profile import Profile
from benchmarks.simulate.prompts import TraceRequest
from benchmarks.simulate.records import Record
from benchmarks.simulate.simulation import Simulation
from benchmarks.simulate.worker import WINDOW_S, Worker

TTFT_TIMES = 5.0
TPOT_TIMES = 5.0
WARM_UP = 0.15


@dataclass(frozen=True)
class Objectives:
    """In seconds, for each request of a trace: `TTFT_TIMES` and `TPOT_TIMES` what it takes on an
    idle fleet with empty caches, and for the first token no less than that of the mean request."""

    ttft: NDArray[np.float64]
    tpot: NDArray[np.float64]

    @staticmethod
    def of(trace: Sequence[TraceRequest], profile: Profile) -> Objectives:
        ttft = np.array(
            [profile.unloaded_ttft(r.tokens, [i.tokens for i in r.items]) for r in trace]
        )
        tpot = np.array([profile.unloaded_tpot(r.tokens, r.output) for r in trace])
        return Objectives(TTFT_TIMES * np.maximum(ttft, ttft.mean()), TPOT_TIMES * tpot)


@dataclass(frozen=True)
class Outcome:
    """Over the requests after the warm-up. Times in ms; rates and shares from 0 to 1.

    `attained`: share of requests within both objectives; `goodput`: those, per second.
    `ttft_p50`, `ttft_p99`: time to the first token; `tpot_p50`, `tpot_p99`: per further token.
    `kv_hits`: share of prompt tokens that were cached; `ec_hits`: of pictures not encoded.
    `refused`: requests.
    `utilisation`: share of the time that workers computed, by stage.
    `imbalance`, by stage: p99 over (worker, window) of queued and running time, over its mean.
    `unsteadiness`: the same if it were spread evenly over the workers at every moment.
    """

    attained: float
    goodput: float
    ttft_p50: float
    ttft_p99: float
    tpot_p50: float
    tpot_p99: float
    kv_hits: float
    ec_hits: float
    refused: int
    utilisation: dict[str, float]
    imbalance: dict[str, float]
    unsteadiness: dict[str, float]


def outcome(simulation: Simulation, records: Sequence[Record], aims: Objectives) -> Outcome:
    """Of a run that has ended."""
    first = int(len(records) * WARM_UP)
    counted = records[first:]
    ttft = np.array([r.ttft for r in counted])
    tpot = np.array([r.tpot for r in counted])
    good = (ttft <= aims.ttft[first:]) & (tpot <= aims.tpot[first:])
    seconds = max(1e-9, counted[-1].arrival - counted[0].arrival)
    prompt = sum(r.request.tokens for r in counted)
    items = sum(len(r.request.items) for r in records)
    runs = sum(w.engine.counters()["mm_encoded"] for w in simulation.encoders.values())
    span = int(counted[0].arrival / WINDOW_S) + 1, int(counted[-1].arrival / WINDOW_S)
    stages: dict[str, list[Worker]] = {
        "prefill": list(simulation.prefills.values()),
        "decode": list(simulation.decodes.values()),
    }
    if items:
        stages["encode"] = list(simulation.encoders.values())
    held = {name: windows(workers, "held", span) for name, workers in stages.items()}
    return Outcome(
        attained=float(good.mean()),
        goodput=float(good.sum()) / seconds,
        ttft_p50=_ms(ttft, 50), ttft_p99=_ms(ttft, 99),
        tpot_p50=_ms(tpot, 50), tpot_p99=_ms(tpot, 99),
        kv_hits=sum(r.cached for r in counted) / prompt,
        ec_hits=1.0 - runs / items if items else 0.0,
        refused=sum(bool(r.refused) for r in counted),
        utilisation={n: float(windows(s, "worked", span).mean()) for n, s in stages.items()},
        imbalance={name: _spread(found) for name, found in held.items()},
        unsteadiness={name: _spread(found.mean(axis=0)) for name, found in held.items()},
    )  # fmt: skip


def _ms(seconds: NDArray[np.float64], percentile: float) -> float:
    return float(np.percentile(seconds, percentile, method="lower")) * 1e3


def windows(workers: Sequence[Worker], column: str, span: tuple[int, int]) -> NDArray[np.float64]:
    """Seconds per second by worker and window, [workers, windows]; zeros if there are none."""
    first, last = span
    rows = []
    for worker in workers:
        worker.count(0)
        values = getattr(worker, column)[:last]
        rows.append(values[first:] + [0.0] * (last - max(first, len(values))))
    found = np.array(rows, dtype=np.float64) / WINDOW_S
    return found if found.size else np.zeros((1, 1))


def _spread(found: NDArray[np.float64]) -> float:
    mean = float(found.mean())
    return float(np.percentile(found, 99)) / mean if mean else 1.0
