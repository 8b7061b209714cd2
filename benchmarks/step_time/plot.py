"""The figures as a picture."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.rows import Row
from benchmarks.step_time.device import Shape
from benchmarks.step_time.host import Queue


@dataclass(frozen=True)
class Point:
    """Milliseconds of a step."""

    shape: Shape
    value: float


def draw(path: Path, points: Sequence[Point], queues: Sequence[Queue], host: Sequence[Row]) -> bool:
    """Decode steps over the batch and over the context, and the host's part over the requests that
    wait; `host` has a row for each queue. False without matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    from matplotlib import pyplot

    decode = [point for point in points if point.shape.count == 1]
    figure, (batch, context, waiting) = pyplot.subplots(1, 3, figsize=(13, 4), layout="constrained")
    for value in sorted({point.shape.context for point in decode}):
        of = [point for point in decode if point.shape.context == value]
        batch.plot([p.shape.batch for p in of], [p.value for p in of], "o-", label=f"{value}")
    for value in sorted({point.shape.batch for point in decode}):
        of = [point for point in decode if point.shape.batch == value]
        context.plot([p.shape.context for p in of], [p.value for p in of], "o-", label=f"{value}")
    for lacking in dict.fromkeys(queue.lacking for queue in queues):
        pairs = [(q.waiting, r.ours) for q, r in zip(queues, host, strict=True)
                 if q.lacking == lacking]  # fmt: skip
        waiting.plot(*zip(*pairs, strict=True), "o-", label=lacking)
    _name(batch, "requests that decode", "step, ms", "context, tokens")
    _name(context, "context, tokens", "step, ms", "batch")
    _name(waiting, "requests that wait", "host before a step, µs", "waiting for")
    waiting.set_xscale("log")
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)
    return True


def _name(axes: object, x: str, y: str, lines: str) -> None:
    axes.set(xlabel=x, ylabel=y, ylim=(0, None))  # type: ignore[attr-defined]
    axes.legend(title=lines, fontsize=7)  # type: ignore[attr-defined]
