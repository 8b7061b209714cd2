"""What a run was worth: latencies, the share within the objectives, hit rates, use of workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.simulate.records import Record, median_lifetime
from benchmarks.simulate.simulation import Simulation
from benchmarks.simulate.worker import WINDOW_S, Worker

_BALANCE_S = 10  # windows of WINDOW_S over which balance is judged


@dataclass(frozen=True)
class Figures:
    """Of requests that arrived within some seconds, simulated or real. Times in ms, inf of what did
    not happen; shares from 0 to 1. Without any request all is 0."""

    offered: float  # requests that arrived, per second
    goodput: float  # those within both objectives, per second
    attained: float  # share of requests within both objectives
    lifetimes: float  # median lifetimes of a request that the measured time is long
    ttft_p50: float  # time to the first token
    ttft_p99: float  # the same, of the slowest in a hundred
    tpot_p50: float  # time per further token
    tpot_p99: float  # the same, of the slowest in a hundred
    refused: float  # share of requests that were not served


@dataclass(frozen=True)
class Outcome(Figures):
    """Of a simulated run, with what its workers know."""

    kv_hits: float  # share of the served prompts' tokens that were cached
    ec_hits: float  # share of pictures that no encoder had to encode
    utilisation: dict[str, float]  # share of the time that workers computed, by role
    imbalance: float  # p99 over (prefill worker, 10 s) of queued and running time, over its mean


def figures(counted: Sequence[Record], seconds: float, now: float) -> Figures:
    """Of the requests that arrived within so many seconds. `now`: when the run ended, on the clock
    of the records' times."""
    ttft = np.array([r.ttft for r in counted])
    tpot = np.array([r.tpot for r in counted])
    good, count = sum(r.good for r in counted), max(1, len(counted))
    lifetime = median_lifetime(counted, now)
    return Figures(
        offered=len(counted) / seconds,
        goodput=good / seconds,
        attained=good / count,
        lifetimes=seconds / lifetime if lifetime else 0.0,
        ttft_p50=_ms(ttft, 50), ttft_p99=_ms(ttft, 99),
        tpot_p50=_ms(tpot, 50), tpot_p99=_ms(tpot, 99),
        refused=sum(bool(r.refused) for r in counted) / count,
    )  # fmt: skip


def outcome(simulation: Simulation, counted: Sequence[Record]) -> Outcome:
    """Of a run that has ended."""
    start, end = simulation.measured
    found = figures(counted, max(1e-9, end - start), simulation.clock.now)
    items = sum(len(r.request.items) for r in simulation.records)
    runs = sum(w.engine.counters()["mm_encoded"] for w in simulation.encoders.values())
    roles = {
        "encode": simulation.encoders, "prefill": simulation.prefills,
        "decode": simulation.decodes,
    }  # fmt: skip
    worked = {
        role: _windows(list(workers.values()), "worked", start, end)
        for role, workers in roles.items()
        if workers
    }
    held = _windows(list(simulation.prefills.values()), "held", start, end)
    served = [r for r in counted if not r.refused]
    return Outcome(
        **vars(found),
        kv_hits=sum(r.cached for r in served) / max(1, sum(r.request.tokens for r in served)),
        ec_hits=1.0 - runs / items if items else 0.0,
        utilisation={role: min(1.0, float(share.mean())) for role, share in worked.items()},
        imbalance=_imbalance(held),
    )


def _ms(seconds: NDArray[np.float64], percentile: float) -> float:
    return float(np.percentile(seconds, percentile, method="lower")) * 1e3 if seconds.size else 0.0


def _windows(
    workers: Sequence[Worker], column: str, start: float, end: float
) -> NDArray[np.float64]:
    """Seconds per second by worker and whole window from `start` to `end`, [workers, windows]."""
    first, last = int(-(-start // WINDOW_S)), int(end // WINDOW_S)
    rows = []
    for worker in workers:
        worker.count(0)
        values = getattr(worker, column)[first:last]
        rows.append(values + [0.0] * (last - first - len(values)))
    found = np.array(rows, dtype=np.float64) / WINDOW_S
    return found if found.size else np.zeros((len(workers), 1))


def _imbalance(held: NDArray[np.float64]) -> float:
    width = min(_BALANCE_S, held.shape[1])
    whole = held.shape[1] // width * width
    found = held[:, :whole].reshape(len(held), -1, width).mean(axis=2)
    mean = float(found.mean())
    return float(np.percentile(found, 99)) / mean if mean else 1.0
