"""How fast our own workers are: real processes on the demo model, timed over a grid, fitted.

What is timed is the processor time of a worker's engine, one thread, so that other programs on the
machine do not count; that of its HTTP process is not in it. Fits are least squares of relative
errors with coefficients that are not negative.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.simulate.probes import BLOCK, Points, measure


@dataclass(frozen=True)
class Fit:
    """ms ≈ Σ coefficient · feature, and the relative errors of that at the points measured."""

    coefficients: tuple[float, ...]
    mean_error: float
    max_error: float
    points: int


def fit(points: Points) -> Fit:
    """Least squares of relative errors; a coefficient that comes out negative is left out."""
    rows, ms = np.array(points.rows), np.array(points.ms)
    kept = list(range(rows.shape[1]))
    while True:
        found = np.linalg.lstsq(rows[:, kept] / ms[:, None], np.ones(len(ms)), rcond=None)[0]
        if (found >= 0).all() or len(kept) == 1:
            break
        del kept[int(found.argmin())]
    values = np.zeros(rows.shape[1])
    values[kept] = np.maximum(found, 0.0)
    errors = np.abs(rows @ values / ms - 1.0)
    return Fit(tuple(map(float, values)), float(errors.mean()), float(errors.max()), len(ms))


def calibration(points: dict[str, Points], block_size: int) -> dict[str, Any]:
    """Coefficients under `Timing`'s names, the fits, where and when. A transfer's fixed part counts
    with prefill's; embeddings move as fast as KV, byte for byte."""
    fits = {name: fit(found) for name, found in points.items()}
    encode, prefill = fits["encode"].coefficients, fits["prefill"].coefficients
    decode, copied = fits["decode"].coefficients, fits["copy"].coefficients
    timing = {
        "encode_base_ms": encode[0], "encode_patch_ms": encode[1],
        "prefill_base_ms": prefill[0], "prefill_token_ms": prefill[1],
        "prefill_cached_ms": prefill[2],
        "decode_base_ms": decode[0], "decode_request_ms": decode[1],
        "decode_context_ms": decode[2],
        "kv_block_ms": copied[1] * block_size / BLOCK, "ec_token_ms": copied[1] / BLOCK,
    }  # fmt: skip
    return {
        "timing": {name: round(value, 7) for name, value in timing.items()},
        "block_size": block_size,
        "fits": {
            name: {
                "points": found.points,
                "mean_error": round(found.mean_error, 4),
                "max_error": round(found.max_error, 4),
            }
            for name, found in fits.items()
        },
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "hardware": _hardware(),
        "model": "models/demo",
    }


def _hardware() -> str:
    info = Path("/proc/cpuinfo")
    names = [
        line.partition(":")[2].strip()
        for line in (info.read_text().splitlines() if info.exists() else [])
        if line.startswith("model name")
    ]
    name = names[0] if names else platform.machine()
    return f"{name}, {os.cpu_count()} cores, 1 thread; processor time"


def table(facts: dict[str, Any]) -> str:
    lines = [f"{name:20} {value:10.5f}" for name, value in facts["timing"].items()]
    lines += [
        f"fit of {name:8} {found['points']:3} points, relative error mean "
        f"{found['mean_error']:.1%}, max {found['max_error']:.1%}"
        for name, found in facts["fits"].items()
    ]
    return "\n".join([*lines, f"{facts['hardware']}, {facts['date']}"])


def run(model: Path, path: Path, block_size: int) -> Sequence[str]:
    """Measure, fit, write `path`; the lines to print."""
    facts = calibration(asyncio.run(measure(model)), block_size)
    path.write_text(json.dumps(facts, indent=1) + "\n")
    return table(facts).splitlines()
