"""Decode steps of the same requests, one replay of a recorded step after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from protocol.errors import TriptychError
from services.engine.containment import contained
from services.engine.model.decode_graphs import DecodeGraphs
from services.engine.sampling.sampler import Sampler
from services.engine.scheduling.request import Request
from services.engine.scheduling.seams import Sampled


@dataclass
class DecodeSteps:
    """`services.engine.scheduling.seams.LaunchedSteps` of one row of logits for each request."""

    graphs: DecodeGraphs
    sampler: Sampler
    requests: Sequence[Request]
    arrays: dict[str, NDArray[Any]]  # of the step that is launched, with the blocks of all steps
    logits: torch.Tensor  # float32[R, vocabulary], its results

    @torch.inference_mode()
    def take(self) -> list[Sampled]:
        """As `LaunchedSteps` says."""
        return contained(self._sampled, range(len(self.requests)), self._failed)

    def _sampled(self, rows: Sequence[int]) -> list[Sampled]:
        # One slice will do: `contained` halves the rows, which stay neighbours.
        logits = self.logits[rows[0] : rows[-1] + 1]
        return self.sampler.sample(logits, [self.requests[row] for row in rows])

    def _failed(self, row: int, error: TriptychError) -> list[Sampled]:
        return [Sampled(self.requests[row], [], failure=error)]

    @torch.inference_mode()
    def follow(self, tokens: Sequence[int]) -> None:
        """As `LaunchedSteps` says."""
        arrays, size = self.arrays, self.graphs.block_size
        positions = arrays["positions"] + 1
        rows = np.arange(len(positions))
        self.arrays = {
            **arrays,
            "ids": np.array(tokens, dtype=np.int64),
            # Behind a prompt all dimensions of a position grow alike.
            "rotary": arrays["rotary"] + 1,
            "positions": positions,
            # The scheduler has allocated the blocks of all these steps before the first one.
            "slot_blocks": arrays["tables"][rows, positions // size],
            "slot_offsets": positions % size,
            "contexts": arrays["contexts"] + 1,
        }
        # This writes over the logits of the step before, which `take` has read by then.
        logits = self.graphs.forward(self.arrays)
        assert logits is not None, "a step of the same rows is recorded as the one before was"
        self.logits = logits
