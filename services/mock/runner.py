"""What stands for the model: tokens that are a function of what was asked, timed by `Timing`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, cast

from connectors.base import EC_TENSOR, Tensors
from connectors.meter import TransferStats
from protocol.errors import InvalidRequest
from protocol.registry import Rates
from protocol.types import (
    EncodeItem,
    GenerateRequest,
    PositionLogprobs,
    SamplingParams,
    TokenLogprob,
)
from services.engine.scheduling.chunks import Chunk, Work
from services.engine.scheduling.request import Request
from services.engine.scheduling.seams import Prepared, Sampled
from services.mock.batches import PATCHES_PER_TOKEN, patches_of
from services.mock.timing import Timing
from services.mock.tokens import prompt_digest, seed_of

_LARGEST = 1 << 31


class Words(Protocol):
    """Which tokens a choice puts out."""

    def tokens(self, digest: int, seed: int, choice: int, start: int, count: int) -> list[int]:
        """Those of `choice` at output positions start … start + count − 1."""


class TimedRunner:
    """A `scheduling.seams.StepRunner` without a model. A request's `rope_delta`, the one
    thing beside KV that a model hands on, has the digest that its tokens depend on."""

    def __init__(self, words: Words) -> None:
        self._words = words

    def run(self, chunks: Sequence[Chunk]) -> list[Sampled]:
        return [self._sample(r, chunk.steps) for chunk in chunks for r in chunk.samplers]

    def fence(self) -> None:
        """Nothing is written behind a step."""

    def _sample(self, request: Request, count: int) -> Sampled:
        tokens = self._words.tokens(
            request.rope_delta, seed_of(request.sampling), request.index, request.num_output, count
        )
        return Sampled(request, tokens, _logprobs(request.sampling.logprobs, tokens))


def _logprobs(wanted: int | None, tokens: list[int]) -> list[PositionLogprobs] | None:
    """Of a model that is always equally sure: the chosen token, then its neighbours."""
    if wanted is None:
        return None
    return [
        PositionLogprobs(
            token,
            -1.0,
            1,
            [TokenLogprob(max(0, token - k), -1.0 - k, 1 + k) for k in range(wanted)],
        )
        for token in tokens
    ]


class TimedAdmission:
    """`services.engine.scheduling.seams.Admission` without a model: any token is one."""

    vocabulary = _LARGEST

    def __init__(self, digest: Callable[[GenerateRequest], int] | None = None) -> None:
        self._digest = digest or _digest

    def positions(self, source: GenerateRequest) -> tuple[Any, int]:
        return None, self._digest(source)

    def constraint(self, sampling: SamplingParams) -> None:
        return None

    def adapter(self, source: GenerateRequest) -> None:
        return None


def _digest(source: GenerateRequest) -> int:
    return prompt_digest(source.token_ids, source.mm_items)


class TimedVision:
    """`services.engine.scheduling.seams.Vision` without a model."""

    def encode(self, batch: Sequence[Prepared]) -> list[Tensors]:
        return [cast(Tensors, {EC_TENSOR: range(prepared.item.length)}) for prepared in batch]


class AtOnce:
    """`services.engine.scheduling.seams.Pictures` that need no preparing."""

    def __init__(self) -> None:
        self._ready: dict[str, Prepared | BaseException] = {}

    def add(self, item: EncodeItem) -> None:
        prepared = Prepared(item, None, patches_of(item.grid, item.length))
        empty = InvalidRequest(f"media item {item.mm_hash[:16]} is empty", param="items")
        self._ready[item.mm_hash] = prepared if item.data and item.length > 0 else empty

    def discard(self, mm_hash: str) -> None:
        self._ready.pop(mm_hash, None)

    def advance(self, wanted: Callable[[str], bool] | None) -> None:
        """All are ready."""

    def ready(self) -> list[tuple[str, Prepared | BaseException]]:
        return list(self._ready.items())

    def close(self) -> None:
        """There is nothing under way."""


class KnownRates:
    """`services.engine.scheduling.seams.Meter` of a worker that knows how fast it is. Measuring, as
    engines do, would need numpy and take longer than the rest of a step."""

    def __init__(self, timing: Timing, row_bytes: int) -> None:
        self._rates = timing.rates(PATCHES_PER_TOKEN, row_bytes)

    def stepped(self, work: Work, seconds: float) -> None: ...

    def encoded(self, tokens: int, seconds: float) -> None: ...

    def transferred(self, stats: Iterable[TransferStats]) -> None: ...

    def rates(self) -> Rates:
        return self._rates
