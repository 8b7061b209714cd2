"""What the scheduling core is given from outside: a clock, a model, a meter.

A worker, a mock worker and a simulated one differ in these, and in their connectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from connectors.base import Tensors
from connectors.kv.base import Fence
from connectors.meter import TransferStats
from protocol.errors import InternalError, TransferError, TriptychError
from protocol.registry import Rates
from protocol.types import EncodeItem, GenerateRequest, PositionLogprobs, SamplingParams
from services.engine.scheduling.chunks import Chunk, Work
from services.engine.scheduling.request import Constraint, NamedAdapter, Request

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Clock = Callable[[], float]
"""Seconds that never go back."""


class NotFinite(InternalError):
    """What a model has made is not finite numbers: the KV that an answer came from is not used
    again, embeddings are not stored."""


class Sampled(msgspec.Struct, frozen=True):
    """The tokens one choice gained in a step, one for each step that its chunk stands for, and
    those of `drafted` guessed ones that were right; with a `failure`, why it cannot gain any.
    `pooled`: the answer to a request that wants no tokens, see `protocol.pooling`."""

    request: Request  # whose choice it is
    token_ids: list[int]  # tokens that it gained
    logprobs: list[PositionLogprobs] | None = None  # of each of them, where they were asked for
    failure: TriptychError | None = None
    drafted: int = 0
    pooled: bytes = b""


class StepRunner(Protocol):
    """The model, one step at a time."""

    def run(self, chunks: Sequence[Chunk]) -> list[Sampled]:
        """Compute the chunks; what each of their samplers gained. KV may still be on its way into
        the cache then, see `fence`."""

    def fence(self) -> Fence | None:
        """Passes once the device has done all that `run` has asked of it so far; None if it has."""


class LaunchedSteps(Protocol):
    """Decode steps of the same requests, one after another. The host must have accounted for the
    tokens of a step before it takes those of the next."""

    def take(self) -> list[Sampled]:
        """Wait for the step that was launched; what each request gained."""

    def follow(self, tokens: Sequence[int]) -> None:
        """Launch the step after it: each request goes on with its token."""


Launch = Callable[[Sequence[Chunk]], LaunchedSteps | None]
"""Launch the first of the steps that chunks stand for; None where they cannot run like that."""


class Drafter(Protocol):
    """Guesses tokens that a step then checks."""

    def draft(self, chunks: Sequence[Chunk]) -> Sequence[Sequence[int]]:
        """What may follow each chunk's request's tokens, up to as many as its `room`."""


class Admission(Protocol):
    """What a model says of requests before they run."""

    @property
    def vocabulary(self) -> int:
        """Token ids lie below."""

    def positions(self, source: GenerateRequest) -> tuple[NDArray[np.int64], int]:
        """Rotary positions int64[1 or 3, prompt] and what to add to a later token's index."""

    def constraint(self, sampling: SamplingParams) -> Constraint | None:
        """For a request's first choice, None if any token may come next. `InvalidRequest` or
        `Unavailable` if there cannot be one."""

    def adapter(self, source: GenerateRequest) -> NamedAdapter | None:
        """The LoRA adapter that a request's `model` names, None for the model itself;
        `ModelNotFound` or `Unavailable` if it is not here, or has other weights."""


class Meter(Protocol):
    """Measures a worker's work."""

    def stepped(self, work: Work, seconds: float) -> None: ...

    def encoded(self, tokens: int, seconds: float) -> None: ...

    def transferred(self, stats: Iterable[TransferStats]) -> None: ...

    def rates(self) -> Rates: ...


MISMATCH = "embedding_length_mismatch"


def length_mismatch(mm_hash: str, rows: int, tokens: int) -> TransferError:
    """A media item has `rows` embeddings where `tokens` were expected."""
    # With a code of its own: `EmbeddingCache` takes any other failure for a lost embedding, and
    # proxies have those encoded again. That would not mend this one.
    return TransferError(
        f"media item {mm_hash[:16]}: the encoder made {rows} embeddings, its placeholder span has "
        f"{tokens} tokens",
        code=MISMATCH,
    )


class EmbeddingForm(Protocol):
    """What the embeddings of one model look like."""

    @property
    def token_bytes(self) -> int:
        """Of one media token."""

    def taken(self, mm_hash: str, tensors: Tensors, tokens: int) -> Tensors:
        """An entry of `tokens` rows as the model takes it; `TransferError` if it cannot."""


@dataclass(frozen=True)
class Prepared:
    """A picture ready for the vision model. `patches` is its share of a run's cost."""

    item: EncodeItem
    pixels: Any
    patches: int


class Pictures(Protocol):
    """Pictures on their way to the vision model, by mm_hash; see `image_prefetch`."""

    def add(self, item: EncodeItem) -> None: ...

    def discard(self, mm_hash: str) -> None: ...

    def advance(self, wanted: Callable[[str], bool] | None) -> None: ...

    def ready(self) -> list[tuple[str, Prepared | BaseException]]: ...

    def close(self) -> None: ...


class Vision(Protocol):
    """The vision model, one run at a time."""

    def encode(self, batch: Sequence[Prepared]) -> Sequence[Tensors | TriptychError]:
        """Embeddings of each picture, or why one cannot be used."""


class Slices(Protocol):
    """The vision model, part of a run at a time."""

    def run(
        self, batch: Sequence[Prepared], most_s: float
    ) -> Sequence[Tensors | TriptychError] | None:
        """Go on with the run of `batch`, or begin it, for about `most_s`; its embeddings, None
        while it has not ended."""

    def abandon(self) -> None:
        """Leave the run under way, if there is one."""

    def close(self) -> None: ...
