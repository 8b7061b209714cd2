"""Steps that no request asked for, so that none pays for the compilation of a kernel.

Triton compiles a kernel for each of its variants: with and without splits of the context, for
prompts beside single tokens, with media spans. Each is run once before the engine is ready. On a
CPU a kernel is compiled for a size of KV blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from protocol.refs import KVLayout
from services.engine.attention.batch import PagedBatch
from services.engine.attention.kv_cache import KVCache, block_elements, pool_dtype
from services.engine.attention.triton_plan import SplitPlan
from services.engine.model.language import Inputs, LanguageModel
from services.engine.model.step_upload import upload

_PROMPT = 40  # tokens: more than one tile of queries


class WarmStep(NamedTuple):
    """Request r brings counts[r] tokens, the last of contexts[r]. `spans`: all see one another."""

    counts: Sequence[int]
    contexts: Sequence[int]
    spans: bool = False


@torch.inference_mode()
def warm_up(model: LanguageModel, cache: KVCache, reserved: int, longest: int) -> None:
    """Run every kind of step, all of its KV in the block `reserved`; `longest` tokens of context
    may be asked for."""
    for step in warm_steps(longest, spans=model.bidirectional_media):
        run_step(model, cache, reserved, step)
    device = torch.device(model.device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@torch.inference_mode()
def warm_up_cpu(model: LanguageModel, layout: KVLayout) -> None:
    """Run a single token through a block of its own; `layout` is that of the pool's blocks."""
    pool = torch.zeros(1, block_elements(layout), dtype=pool_dtype(layout))
    run_step(model, KVCache(layout, pool), 0, WarmStep([1], [1]))


def warm_steps(longest: int, *, spans: bool) -> Iterator[WarmStep]:
    """One step for each set of kernels and variants that requests may ask for."""
    prompt = min(_PROMPT, longest)
    if prompt > 1:
        yield WarmStep([prompt], [prompt])
        yield WarmStep([prompt, 1], [prompt, 1])
        if spans:
            yield WarmStep([prompt], [prompt], spans=True)
            yield WarmStep([prompt, 1], [prompt, 1], spans=True)
    for context in _decode_contexts(longest):
        yield WarmStep([1], [context])


def _decode_contexts(longest: int) -> list[int]:
    """Contexts that are not split, and that are split into up to 16, 32 and 64 parts, for which the
    kernel that merges them has a variant each."""
    shortest = SplitPlan(programs=1).min_split
    contexts = [1, *(shortest * parts for parts in (2, 24, 48))]
    return sorted({min(context, longest) for context in contexts})


def run_step(model: LanguageModel, cache: KVCache, reserved: int, step: WarmStep) -> torch.Tensor:
    """Logits float32[R, vocabulary] of each request's last token, which mean nothing."""
    starts = np.concatenate([[0], np.cumsum(step.counts)])
    sent = upload(_arrays(model, cache, reserved, step, starts), torch.device(model.device))
    batch = PagedBatch(
        cache=cache,
        slot_blocks=sent["slot_blocks"],
        slot_offsets=sent["slot_offsets"],
        block_tables=sent["tables"],
        query_starts=starts.tolist(),
        context_lens=list(step.contexts),
        positions=sent["positions"],
        span_starts=sent.get("span_starts"),
        span_ends=sent.get("span_ends"),
        windowed_spans=model.windowed_media,
        starts=sent["starts"],
        contexts=sent["contexts"],
    )
    return model.forward(Inputs(model.embed(sent["ids"]), sent["rotary"], sent["rows"]), batch)


def _arrays(
    model: LanguageModel,
    cache: KVCache,
    reserved: int,
    step: WarmStep,
    starts: NDArray[np.int64],
) -> dict[str, NDArray[Any]]:
    """As `Runner` makes them."""
    ends = zip(step.counts, step.contexts, strict=True)
    positions = np.concatenate([np.arange(context - count, context) for count, context in ends])
    tokens, width = len(positions), -(-max(step.contexts) // cache.block_size)
    arrays = {
        "ids": np.zeros(tokens, dtype=np.int64),
        "rotary": np.tile(positions, (3 if model.uses_mrope else 1, 1)),
        "rows": starts[1:] - 1,
        "positions": positions,
        "slot_blocks": np.full(tokens, reserved, dtype=np.int64),
        "slot_offsets": positions % cache.block_size,
        "tables": np.full((len(step.contexts), width), reserved, dtype=np.int64),
        "starts": starts.astype(np.int32),
        "contexts": np.array(step.contexts, dtype=np.int32),
    }
    if step.spans:
        arrays["span_starts"] = np.zeros(tokens, dtype=np.int64)
        arrays["span_ends"] = np.full(tokens, min(step.contexts), dtype=np.int64)
    return arrays
