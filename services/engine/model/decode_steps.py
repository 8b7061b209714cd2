"""Decode steps of the same requests, one replay of a recorded step after another."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from protocol.errors import TriptychError
from services.engine.containment import contained, told
from services.engine.model.decode_graphs import DecodeGraphs
from services.engine.sampling.sampler import Sampler
from services.engine.scheduling.request import Request
from services.engine.scheduling.seams import Sampled

logger = logging.getLogger(__name__)


class DecodeSteps:
    """`services.engine.scheduling.seams.LaunchedSteps` of one row of logits for each request."""

    def __init__(
        self,
        graphs: DecodeGraphs,
        sampler: Sampler,
        requests: Sequence[Request],
        arrays: dict[str, NDArray[Any]],
        logits: torch.Tensor,
    ) -> None:
        self._graphs = graphs
        self._sampler = sampler
        self._requests = requests
        self._arrays = arrays
        self._logits = logits

    @classmethod
    def launched(
        cls,
        graphs: DecodeGraphs,
        sampler: Sampler,
        requests: Sequence[Request],
        arrays: dict[str, NDArray[Any]],
    ) -> DecodeSteps | None:
        """With the first step launched, None if it was not recorded, or cannot be launched now.
        arrays: as `Runner` makes them, with the blocks of all steps."""
        try:
            logits = graphs.forward(arrays)
        except Exception as error:
            logger.warning("steps do not run in a row: %s", told(error))
            return None
        return None if logits is None else cls(graphs, sampler, requests, arrays, logits)

    @torch.inference_mode()
    def take(self) -> list[Sampled]:
        """As `LaunchedSteps` says."""
        return contained(self._sampled, range(len(self._requests)), self._failed)

    def _sampled(self, rows: Sequence[int]) -> list[Sampled]:
        logits = self._logits[rows[0] : rows[-1] + 1]
        return self._sampler.sample(logits, [self._requests[row] for row in rows])

    def _failed(self, row: int, error: TriptychError) -> list[Sampled]:
        return [Sampled(self._requests[row], [], failure=error)]

    @torch.inference_mode()
    def follow(self, tokens: Sequence[int]) -> None:
        """As `LaunchedSteps` says."""
        arrays, size = self._arrays, self._graphs.block_size
        positions = arrays["positions"] + 1
        rows = np.arange(len(positions))
        self._arrays = {
            **arrays,
            "ids": np.array(tokens, dtype=np.int64),
            "rotary": arrays["rotary"] + 1,
            "positions": positions,
            "slot_blocks": arrays["tables"][rows, positions // size],
            "slot_offsets": positions % size,
            "contexts": arrays["contexts"] + 1,
        }
        logits = self._graphs.forward(self._arrays)
        assert logits is not None, "a step of the same rows is recorded as the one before was"
        self._logits = logits
