"""Step time against batch, context and the number of requests that wait.

    python -m benchmarks.step_time [--quick] [--json FILE] [--markdown FILE] [--svg FILE]
        [--model DIR] [--dtype DTYPE] [--kv-cache-dtype DTYPE] [--device DEVICE] [--threads N]

Three parts. A decode step and a prefill step of the model, in ms, from the scheduler's chunks to
token ids on the host, over batches and contexts; and what the host does before it, in µs, from the
end of one step to the next one's chunks, while 1, 100 and 1,000 requests wait. There is no peer: a
row of the last part is compared with the same queue of 1, and holds if it is within `bar` or under
1 ms.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.common.environment import start_as_an_engine
from benchmarks.common.plotting import check_plots, save
from benchmarks.common.rows import Row, arguments, finish, hardware, head, line, markdown
from benchmarks.step_time.device import Shape, Steps
from benchmarks.step_time.host import Queue, filled, measure, queues


@dataclass(frozen=True)
class Point:
    """Milliseconds of a step."""

    shape: Shape
    value: float


def draw(path: Path, points: Sequence[Point], queues: Sequence[Queue], host: Sequence[Row]) -> None:
    """Decode steps over the batch and over the context, and the host's part over the requests that
    wait; `host` has a row for each queue."""
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
    save(figure, path)


def _name(axes: object, x: str, y: str, lines: str) -> None:
    axes.set(xlabel=x, ylabel=y, ylim=(0, None))  # type: ignore[attr-defined]
    axes.legend(title=lines, fontsize=7)  # type: ignore[attr-defined]


BATCHES, CONTEXTS = (1, 2, 4, 8, 16, 32), (256, 1024, 4096)
PREFILL = (Shape(1, 64, 64), Shape(1, 256, 256), Shape(1, 1024, 256), Shape(1, 4096, 256))
QUICK_BATCHES, QUICK_CONTEXTS = (1, 8), (256, 1024)
WAITING = (1, 100, 1000)
HOST_BAR, HOST_US = 1.5, 1000.0
STEPS, QUICK_STEPS = 15, 3


def shapes_of(*, quick: bool) -> list[Shape]:
    batches, contexts = (QUICK_BATCHES, QUICK_CONTEXTS) if quick else (BATCHES, CONTEXTS)
    decode = [Shape(batch, context) for context in contexts for batch in batches]
    return [*decode, *(PREFILL[1:2] if quick else PREFILL)]


def device_rows(steps: Steps, shapes: Sequence[Shape], count: int) -> list[Point]:
    """Measure each shape, printing a line."""
    points = []
    for shape in shapes:
        points.append(Point(shape, steps.measure(shape, count)))
        print(line(Row(f"{shape.name}, ms", points[-1].value)), flush=True)
    return points


def host_rows() -> list[Row]:
    """Measure each queue beside the one of 1, printing a line."""
    rows = []
    alone: dict[str, float] = {}
    for queue in queues(WAITING):
        ours = measure(filled(queue))
        peer = alone.setdefault(queue.lacking, ours)
        rows.append(host_row(queue, ours, peer))
        print(line(rows[-1]), flush=True)
    return rows


def host_row(queue: Queue, ours: float, peer: float) -> Row:
    bar = f"ratio <= {HOST_BAR:g} or {HOST_US:,.0f} µs"
    holds = ours <= max(peer * HOST_BAR, HOST_US)
    return Row(f"host, {queue.name}, µs", ours, peer, ours / peer, bar, holds)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = arguments("step_time", __doc__)
    parser.add_argument(
        "--model", type=Path, default=Path("models/demo"), help="folder of the model"
    )
    parser.add_argument("--dtype", default="auto", help="a worker's --dtype")
    parser.add_argument("--device", default="auto", help="a worker's --device")
    parser.add_argument("--kv-cache-dtype", default="auto", help="a worker's --kv-cache-dtype")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0: PyTorch's default")
    parser.add_argument("--markdown", type=Path, help="write the table here")
    parser.add_argument("--svg", type=Path, help="plot here (needs the extra 'bench')")
    args = parser.parse_args(argv)
    check_plots(parser, "--svg", args.svg)
    if args.threads:
        torch.set_num_threads(args.threads)
    shapes = shapes_of(quick=args.quick)
    steps = Steps(args.model, args.dtype, args.device, shapes, kv_cache_dtype=args.kv_cache_dtype)
    about = f"{hardware(('torch', 'transformers'), 0)}. {steps.about}, "
    about += f"{torch.get_num_threads()} CPU threads."
    print(about)
    print(head())
    points = device_rows(steps, shapes, QUICK_STEPS if args.quick else STEPS)
    waiting = host_rows()
    rows = [Row(f"{point.shape.name}, ms", point.value) for point in points] + waiting
    if args.markdown is not None:
        args.markdown.write_text(markdown(rows, about))
    if args.svg is not None:
        draw(args.svg, points, queues(WAITING), waiting)
    return finish(rows, args.json)


if __name__ == "__main__":
    start_as_an_engine("benchmarks.step_time")
    sys.exit(main())
