"""What a picture costs an encoder before its vision model: decoding, resizing, normalizing.

    python -m benchmarks.bench_pictures [--quick] [--json FILE] [--threads N]

Ours as workers run it, beside transformers' processor for the same model as it comes. Both decode
with Pillow, and both end with patches in bfloat16, which the model takes. Milliseconds a picture,
one after the other in one thread, and pictures/s in as many threads as an encoder has for it. The
model is models/demo with room for pictures of 1920 x 1080.
"""

from __future__ import annotations

import io
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import AutoImageProcessor

from benchmarks.common.environment import start_as_an_engine
from benchmarks.common.rows import Row, arguments, at_least, at_most, finish, hardware, head, line
from services.engine.model.picture_processor import picture_processor
from services.frontend.media.image import load_rgb

MODEL = Path("models/demo")
SEED = 0
MOST_PIXELS = 1920 * 1080
ROUNDS, QUICK_ROUNDS = 15, 3
THREADS = 2  # of an encoder's `ImagePrefetch`


@dataclass(frozen=True)
class Kind:
    """An encoded picture."""

    name: str
    data: bytes


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = arguments("bench_pictures", __doc__)
    parser.add_argument("--threads", type=int, default=THREADS)
    args = parser.parse_args(argv)
    print(hardware(("transformers", "numpy", "pillow", "torchvision"), SEED))
    rounds = QUICK_ROUNDS if args.quick else ROUNDS
    rows: list[Row] = []
    print(head())
    with tempfile.TemporaryDirectory() as folder:
        model = _model(Path(folder) / "model")
        ours = picture_processor(model, torch.bfloat16)
        peer = AutoImageProcessor.from_pretrained(model)
        for kind in _kinds():
            for row in measure(kind, ours, peer, rounds, args.threads):
                print(line(row), flush=True)
                rows.append(row)
    return finish(rows, args.json)


def measure(kind: Kind, ours: Any, peer: Any, rounds: int, threads: int) -> list[Row]:
    def mine() -> object:
        return ours(images=[load_rgb(kind.data, max_pixels=MOST_PIXELS)], return_tensors="pt")

    def theirs() -> object:
        image = Image.open(io.BytesIO(kind.data)).convert("RGB")
        return peer(images=[image], return_tensors="pt")["pixel_values"].to(torch.bfloat16)

    alone = at_most(f"{kind.name}: ms in one thread", _median_ms(mine, rounds),
                    _median_ms(theirs, rounds))  # fmt: skip
    together = at_least(f"{kind.name}: pictures/s in {threads} threads",
                        _rate(mine, rounds, threads), _rate(theirs, rounds, threads))  # fmt: skip
    return [alone, together]


def _median_ms(call: Callable[[], object], rounds: int) -> float:
    call()
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - begun))
    return statistics.median(times)


def _rate(call: Callable[[], object], rounds: int, threads: int) -> float:
    """Of the median of three runs, after a picture for each thread."""
    rates = []
    with ThreadPoolExecutor(threads) as pool:
        for count in (1, rounds, rounds, rounds):
            begun = time.perf_counter()
            for future in [pool.submit(call) for _ in range(count * threads)]:
                future.result()
            rates.append(count * threads / (time.perf_counter() - begun))
    return statistics.median(rates[1:])


def _model(folder: Path) -> Path:
    """The demo model's files, but that pictures stay as large as they are."""
    shutil.copytree(MODEL, folder, ignore=shutil.ignore_patterns("*.safetensors", "*.md"))
    path = folder / "preprocessor_config.json"
    sizes = {"shortest_edge": 3136, "longest_edge": MOST_PIXELS}
    path.write_text(json.dumps({**json.loads(path.read_text()), "size": sizes}))
    return folder


def _kinds() -> list[Kind]:
    """Smooth shapes with a little noise: what a camera's file takes to decode."""
    random = np.random.default_rng(SEED)
    kinds = []
    for width, height in ((448, 448), (1920, 1080)):
        y, x = np.mgrid[0:height, 0:width]
        waves = [128 + 100 * np.sin(x / (37 + 9 * c) + y / (53 - 7 * c)) for c in range(3)]
        pixels = np.stack(waves, axis=-1) + random.normal(0, 6, (height, width, 3))
        image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
        for form in ("JPEG", "PNG"):
            file = io.BytesIO()
            image.save(file, form, quality=90)
            kinds.append(Kind(f"{width} x {height} {form}", file.getvalue()))
    return kinds


if __name__ == "__main__":
    start_as_an_engine("benchmarks.bench_pictures")
    sys.exit(main())
