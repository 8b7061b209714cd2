"""Steps of the engine beside what a GPU's memory and multipliers allow.

    python -m benchmarks.bench_gpu [--quick] [--json FILE] [--size {3b,7b} | --model DIR]
        [--steps-only] [--device DEVICE]

A row is the time in ms of one step, from the scheduler's chunks to token ids on the host, or of one
run of the vision model over pictures of 1080p. The peer of a decode step is the time in which the
device copies as many bytes as the step must read: weights and KV. The peer of a prefill step is the
time in which a square matrix product takes as many operations. No step can beat its peer, and both
are measured in the same run; a row holds if `ratio` (our time / peer's time) is at most `bar`. Rows
named `eager` are without CUDA graphs. Without `--model` a model of the shape of Qwen2.5-VL-3B or 7B
is made, with random weights.
"""

from __future__ import annotations

import io
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
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
_VISION = {
    "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16,
    "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31],
}  # fmt: skip


def _shape(layers: int, hidden: int, inner: int, heads: int, kv_heads: int) -> ModelShape:
    """A model of the family of Qwen2.5-VL, all of which have one vision tower."""
    text = {
        "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
        "layer_types": ["full_attention"] * layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "vocab_size": 151936,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24],
        },
    }  # fmt: skip
    vision = {**_VISION, "out_hidden_size": hidden}
    return ModelShape(text, vision, SIZE[0] * SIZE[1], torch.bfloat16)


SIZES = {"3b": _shape(36, 2048, 11008, 16, 2), "7b": _shape(28, 3584, 18944, 28, 4)}


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


def eager_rows(
    model: Path, dtype: str, device: str, shapes: Sequence[Shape], rounds: int
) -> Iterator[Row]:
    """Decode steps whose kernels are launched one by one."""
    decode = [shape for shape in shapes if shape.count == 1]
    steps = Steps(model, dtype, device, decode, eager=True)
    for shape in decode:
        yield Row(f"{shape.name}, eager, ms", steps.measure(shape, rounds))


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


def _rows(model: Path, dtype: str, device: str, *, steps_only: bool, quick: bool) -> Iterator[Row]:
    rounds = QUICK_STEPS if quick else STEPS
    shapes = QUICK if quick else DECODE + PREFILL
    yield from step_rows(model, dtype, device, shapes, rounds)
    if steps_only:
        return
    if torch.device(device).type == "cuda":
        yield from eager_rows(model, dtype, device, shapes, rounds)
    counts = QUICK_PICTURES if quick else PICTURES
    yield from picture_rows(model, dtype, device, counts, min(rounds, 5))


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = arguments("bench_gpu", __doc__)
    parser.add_argument("--model", type=Path, help="folder of the model; by default one is made")
    parser.add_argument(
        "--size", choices=SIZES, default="3b", help="size of the model that is made"
    )
    parser.add_argument(
        "--steps-only", action="store_true", help="neither decode without graphs nor pictures"
    )
    parser.add_argument("--device", default="cuda", help="a worker's --device")
    args = parser.parse_args(argv)
    if args.device != "cpu" and not torch.cuda.is_available():
        print("no CUDA device: nothing is measured")
        return 0
    dtype = "float32" if args.device == "cpu" else "bfloat16"
    print(hardware(("torch", "transformers", "triton"), 0))
    if args.device != "cpu":
        print(torch.cuda.get_device_name(args.device))
    print(head())
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        shape = SIZES[args.size]
        model = args.model or build(BASE, Path(folder, "model"), shape, args.device)
        for row in _rows(model, dtype, args.device, steps_only=args.steps_only, quick=args.quick):
            rows.append(row)
            print(line(row), flush=True)
    return finish(rows, args.json)


if __name__ == "__main__":
    sys.exit(main())
