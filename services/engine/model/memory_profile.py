"""How much memory the largest steps take beside the weights, found out by running them.

The KV pool gets what is left of a GPU, so this is asked once, before the pool is made.
"""

from __future__ import annotations

import io
import math
from typing import Protocol

import torch
from PIL import Image

from protocol.errors import ConfigError
from protocol.types import EncodeItem, SamplingParams
from services.engine.attention.kv_cache import KVCache, block_elements, pool_dtype
from services.engine.model.language import LanguageModel
from services.engine.model.vision import VisionModel
from services.engine.model.warm_up import WarmStep, run_step
from services.engine.sampling.draw import draw
from services.engine.scheduling.seams import Prepared

_PATCH = 14  # pixels a side, in most families
# All tokens are as likely as one another and nearly all are kept, so rows are sorted as a whole.
_SORTED = SamplingParams(temperature=1e6, top_p=1 - 1e-9)


class Memory(Protocol):
    """Measures a device's memory."""

    def begin(self) -> None:
        """From here on."""

    def peak(self) -> int:
        """Bytes taken at most since `begin`, beyond what was taken then."""


class CudaMemory:
    """By PyTorch's allocator, whose blocks are counted as a whole: their gaps are taken, too."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before = 0

    def begin(self) -> None:
        self._clear()
        torch.cuda.reset_peak_memory_stats(self._device)
        self._before = torch.cuda.memory_reserved(self._device)

    def peak(self) -> int:
        self._clear()
        return torch.cuda.max_memory_reserved(self._device) - self._before

    def _clear(self) -> None:
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()  # what is kept for later would count as taken by another


def memory_of(device: str) -> Memory | None:
    """None on a CPU, whose pool is of a fixed size."""
    found = torch.device(device)
    return CudaMemory(found) if found.type == "cuda" else None


@torch.inference_mode()
def step_peak(
    model: LanguageModel,
    memory: Memory,
    block_size: int,
    tokens: int,
    requests: int,
    *,
    samples: bool = True,
) -> int:
    """Bytes that a step of `tokens` prompt tokens of so many requests takes; if it `samples`, with
    the draws after it."""
    layout = model.kv_layout(block_size)
    # One block for all of the step's KV, made before `begin`: the pool is not what is measured.
    pool = torch.zeros(1, block_elements(layout), dtype=pool_dtype(layout), device=model.device)
    requests = min(requests, tokens)
    counts = [tokens // requests + (row < tokens % requests) for row in range(requests)]
    memory.begin()
    try:
        logits = run_step(model, KVCache(layout, pool), 0, WarmStep(counts, counts))
        # Sampling counts: sorted rows and their cumulative sums take several times the memory of
        # the logits, of which penalties make a copy.
        if samples:
            draw(logits.clone(), [_SORTED] * requests, [0.5] * requests)
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"a step of {tokens} tokens does not fit into the memory of {model.device}: lower "
            "--max-num-batched-tokens or --max-num-seqs"
        ) from error
    del logits
    return memory.peak()


def encode_peak(vision: VisionModel, memory: Memory, patches: int, max_pixels: int) -> int:
    """Bytes that a run over about `patches` patches takes, of one picture or, where none is so
    large, of several; or over as much audio."""
    silence = vision.silence()
    largest = _picture(vision, patches, max_pixels) if silence is None else silence
    batch = [largest] * max(1, patches // largest.patches)
    memory.begin()
    try:
        # The answers are of no use: a picture's length here is not that of its placeholders.
        vision.encode_at_once(batch)
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"a run over {patches} patches of media does not fit into the GPU's memory: lower "
            "--max-encoder-patches"
        ) from error
    return memory.peak()


def _picture(vision: VisionModel, patches: int, max_pixels: int) -> Prepared:
    side = math.isqrt(min(patches * _PATCH**2, max_pixels))
    data = io.BytesIO()
    Image.new("RGB", (side, side)).save(data, "PNG")
    return vision.prepare(EncodeItem("profile", "image", 1, data=data.getvalue()))
