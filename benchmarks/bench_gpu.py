"""Steps of the engine beside what a GPU's memory and multipliers allow.

    python -m benchmarks.bench_gpu [--quick] [--json FILE] [--model DIR] [--device DEVICE]

A row is the time in ms of one step, from the scheduler's chunks to token ids on the host, or of one
run of the vision model over pictures of 1080p. The peer of a decode step is the time in which the
device copies as many bytes as the step must read: weights and KV. The peer of a prefill step is the
time in which a square matrix product takes as many operations. No step can beat its peer, and both
are measured in the same run; a row holds if `ratio` (our time / peer's time) is at most `bar`. Rows
named `eager` are without CUDA graphs. Without `--model` a model of the shape of Qwen2.5-VL-3B is
made, with random weights.

Never run on a GPU; a test runs it on a CPU with a small model.
"""

from __future__ import annotations

import io
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.common.random_model import ModelShape, build
from benchmarks.common.rows import Row, arguments, at_most, finish, hardware, head, line
from benchmarks.step_time.device import Shape, Steps
from protocol.types import EncodeItem
from services.engine.attention.kv_cache import DTYPES
from services.engine.model.vision import VisionModel

DECODE = tuple(Shape(batch, 1024) for batch in (1, 32, 64))
PREFILL = (Shape(1, 2048, 2048), Shape(8, 512, 512))
QUICK = (Shape(1, 64), Shape(2, 64), Shape(1, 64, 64))
PICTURES, QUICK_PICTURES = (1, 4, 16), (1, 2)
SIZE = (1920, 1080)
DECODE_BAR, PREFILL_BAR = 1 / 0.75, 1 / 0.6
STEPS, QUICK_STEPS = 30, 3
BASE = Path("models/demo")
MODEL = ModelShape(
    text={
        "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36,
        "layer_types": ["full_attention"] * 36,
        "num_attention_heads": 16, "num_key_value_heads": 2, "vocab_size": 151936,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24],
        },
    },
    vision={
        "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16,
        "out_hidden_size": 2048, "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31],
    },
    most_pixels=SIZE[0] * SIZE[1],
    dtype=torch.bfloat16,
)  # fmt: skip


def median_ms(call: Callable[[], object], device: torch.device, rounds: int) -> float:
    """Of a call and all that it has asked of the device."""
    times = []
    for _ in range(2 + rounds):
        begun = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append((time.perf_counter() - begun) * 1e3)
    return statistics.median(times[2:])


def copy_rate(device: torch.device, megabytes: int, rounds: int) -> float:
    """Bytes a ms that a copy reads and writes."""
    source = torch.ones(megabytes << 20, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / median_ms(lambda: target.copy_(source), device, rounds)


def matmul_rate(device: torch.device, dtype: torch.dtype, size: int, rounds: int) -> float:
    """Floating-point operations a ms of a square product."""
    a, b = torch.randn(2, size, size, device=device).to(dtype)
    return float(2 * size**3 / median_ms(lambda: a @ b, device, rounds))


def step_rows(
    model: Path, dtype: str, device: str, shapes: Sequence[Shape], rounds: int
) -> Iterator[Row]:
    """Decode and prefill steps beside the device's rates."""
    found, quick = torch.device(device), rounds == QUICK_STEPS
    copied = copy_rate(found, 64 if quick else 1024, rounds)
    multiplied = matmul_rate(found, DTYPES[dtype], 512 if quick else 8192, rounds)
    steps = Steps(model, dtype, device, shapes)
    parameters = steps.body_bytes / DTYPES[dtype].itemsize
    for shape in shapes:
        ours = steps.measure(shape, rounds)
        if shape.count == 1:
            kv = shape.batch * shape.context * steps.kv_bytes_per_token
            read = steps.body_bytes + steps.head_bytes + kv
            peer, bar = read / copied, DECODE_BAR
        else:
            peer, bar = 2 * parameters * shape.batch * shape.count / multiplied, PREFILL_BAR
        yield at_most(f"{shape.name}, ms", ours, peer, bar)
    if found.type == "cuda":
        del steps
        eager = Steps(model, dtype, device, shapes, eager=True)
        for shape in (one for one in shapes if one.count == 1):
            yield Row(f"{shape.name}, eager, ms", eager.measure(shape, rounds))


def picture_rows(
    model: Path, dtype: str, device: str, counts: Sequence[int], rounds: int
) -> Iterator[Row]:
    """Runs of the vision model; decoding and resizing come before and are not timed."""
    vision = VisionModel(model, DTYPES[dtype], device, SIZE[0] * SIZE[1], "auto")
    random = np.random.default_rng(0)
    for count in counts:
        batch = [vision.prepare(_picture(random)) for _ in range(count)]
        ours = median_ms(partial(vision.encode, batch), torch.device(device), rounds)
        yield Row(f"{count} pictures of {SIZE[0]}x{SIZE[1]} in one run, ms", ours)


def _picture(random: np.random.Generator) -> EncodeItem:
    tiles = Image.fromarray(random.integers(0, 255, (27, 48, 3), dtype=np.uint8))
    data = io.BytesIO()
    tiles.resize(SIZE, Image.Resampling.NEAREST).save(data, "PNG")
    return EncodeItem("picture", "image", 1, data=data.getvalue())


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = arguments("bench_gpu", __doc__)
    parser.add_argument("--model", type=Path, help="its folder; by default one is made")
    parser.add_argument("--device", default="cuda", help="as a worker's")
    args = parser.parse_args(argv)
    if args.device != "cpu" and not torch.cuda.is_available():
        print("no CUDA device: nothing is measured")
        return 0
    dtype = "float32" if args.device == "cpu" else "bfloat16"
    rounds = QUICK_STEPS if args.quick else STEPS
    print(hardware(("torch", "transformers", "triton"), 0))
    if args.device != "cpu":
        print(torch.cuda.get_device_name(args.device))
    print(head())
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or build(BASE, Path(folder, "model"), MODEL)
        counts = QUICK_PICTURES if args.quick else PICTURES
        shapes = QUICK if args.quick else DECODE + PREFILL
        picture_rounds = min(rounds, 5)
        for row in chain(
            step_rows(model, dtype, args.device, shapes, rounds),
            picture_rows(model, dtype, args.device, counts, picture_rounds),
        ):
            rows.append(row)
            print(line(row), flush=True)
    return finish(rows, args.json)


if __name__ == "__main__":
    sys.exit(main())
