"""A stand-in for CUDA graphs on a CPU: what it records it computes again, over the same buffers."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch

from services.engine import parts
from services.engine.attention.batch import PagedBatch
from services.engine.attention.torch_attention import TorchAttention


class TensorAttention:
    """PyTorch's attention by a batch's tensors alone, as captured kernels compute it: the batch's
    lists are bounds, and may say anything."""

    def __init__(self) -> None:
        self.own = TorchAttention()

    def write(self, key: torch.Tensor, value: torch.Tensor, layer: int, batch: PagedBatch) -> None:
        self.own.write(key, value, layer, _as_it_is(batch))

    def attend(
        self,
        query: torch.Tensor,
        layer: int,
        batch: PagedBatch,
        scale: float,
        softcap: float | None,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        return self.own.attend(query, layer, _as_it_is(batch), scale, softcap, sinks)


def _as_it_is(batch: PagedBatch) -> PagedBatch:
    contexts = batch.contexts_tensor.tolist()
    width = -(-max(contexts) // batch.cache.block_size)
    return PagedBatch(
        batch.cache,
        batch.slot_blocks.clone(),
        batch.slot_offsets.clone(),
        batch.block_tables[:, :width].clone(),
        batch.starts_tensor.tolist(),
        contexts,
        batch.positions.clone(),
    )


@dataclass
class Rerun:
    """A `Capture` that keeps the function itself.

    recorded: numbers of the recordings, in their order; replayed: that of each replay
    """

    backend: TensorAttention = field(default_factory=TensorAttention)
    recorded: list[int] = field(default_factory=list)
    replayed: list[int] = field(default_factory=list)

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
        run()
        number = len(self.recorded)
        self.recorded.append(number)

        def replay() -> None:
            self.replayed.append(number)
            run()

        return replay


def use(monkeypatch: pytest.MonkeyPatch, capture: Rerun) -> None:
    """Engines built from here on decode by `capture`."""
    monkeypatch.setattr(parts, "capture_on", lambda *_, **__: capture)
