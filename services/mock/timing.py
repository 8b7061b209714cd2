"""The timing model: how long a worker with a model would have taken; calls that are due then."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from connectors.tiers.base import TierName
from protocol.errors import ConfigError
from protocol.options import milliseconds, option
from protocol.registry import Rates


class Timers:
    """Calls that are due at some time on an engine's clock: by their time, then in the order of
    their adding."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._made = 0

    def at(self, time: float, call: Callable[[], None]) -> None:
        self._made += 1
        heapq.heappush(self._due, (time, self._made, call))

    def run(self, now: float) -> None:
        """Make every call that is due."""
        while self._due and self._due[0][0] <= now:
            heapq.heappop(self._due)[2]()

    @property
    def next_time(self) -> float | None:
        return self._due[0][0] if self._due else None


@dataclass(frozen=True)
class Timing:
    """Milliseconds of each kind of work; every duration is divided by `speed`.

    A step takes decode_base_ms + decode_request_ms · batch + decode_context_ms · context for the
    choices that decode in it, and prefill_base_ms + prefill_token_ms · computed +
    prefill_cached_ms · reused tokens for the chunks that prefill in it. An encoder run takes
    encode_base_ms + encode_patch_ms · patches + encode_token_ms · tokens. `speed` inf means that
    nothing takes any time.
    """

    encode_base_ms: float = 0.0  # of an encoder run of any size
    encode_patch_ms: float = 0.0  # and for each patch
    encode_token_ms: float = 0.0  # and for each embedding
    prefill_base_ms: float = 0.0  # of a step that computes prompts
    prefill_token_ms: float = 0.0  # and for each prompt token
    prefill_cached_ms: float = 0.0  # and for each token whose KV is reused
    decode_base_ms: float = 0.0  # of a step that decodes
    decode_request_ms: float = 0.0  # and for each choice in it
    decode_context_ms: float = 0.0  # and for each token of their contexts
    kv_block_ms: float = 0.0  # of copying one KV block
    kv_host_block_ms: float = 0.0  # the same to or from host memory below the pool
    kv_disk_block_ms: float = 0.0  # the same to or from disk
    ec_token_ms: float = 0.0  # of copying one row of an embedding
    speed: float = 1.0  # every duration is divided by it

    def encode_s(self, patches: int, tokens: int) -> float:
        """One encoder run over `patches` patches that become `tokens` embeddings."""
        total = self.encode_base_ms + self.encode_patch_ms * patches
        return self._seconds(total + self.encode_token_ms * tokens)

    def prefill_s(self, tokens: int, cached: int) -> float:
        """The chunks of one step: `tokens` computed, `cached` reused; 0 if there are neither."""
        if not tokens and not cached:
            return 0.0
        total = self.prefill_base_ms + self.prefill_token_ms * tokens
        return self._seconds(total + self.prefill_cached_ms * cached)

    def decode_s(self, tokens: int, context: int, steps: int = 1) -> float:
        """`steps` steps that put out `tokens` tokens; `context` adds up, over all of these, the
        tokens before each."""
        if not tokens:
            return 0.0
        total = self.decode_base_ms * steps + self.decode_request_ms * tokens
        return self._seconds(total + self.decode_context_ms * context)

    def kv_s(self, blocks: int) -> float:
        """KV blocks from one worker to another."""
        return self._seconds(self.kv_block_ms * blocks)

    def tier_s(self, name: TierName) -> float:
        """One KV block to or from a tier below the pool."""
        return self._seconds(self.kv_host_block_ms if name == "host" else self.kv_disk_block_ms)

    def embedding_s(self, tokens: int) -> float:
        """An embedding of `tokens` rows from an encoder."""
        return self._seconds(self.ec_token_ms * tokens)

    @property
    def instant_decode(self) -> bool:
        """True if a decode step takes no time, so that no order of steps can be observed."""
        return self.decode_s(1, 1) == 0.0

    def rates(self, patches_per_token: float, row_bytes: int) -> Rates:
        """What a worker of this speed measures of itself."""
        per_token = self.encode_token_ms + self.encode_patch_ms * patches_per_token
        row_ms = self.ec_token_ms / self.speed
        return Rates(
            encode_base_ms=self.encode_base_ms / self.speed,
            encode_ms_per_token=per_token / self.speed,
            prefill_base_ms=self.prefill_base_ms / self.speed,
            prefill_ms_per_token=self.prefill_token_ms / self.speed,
            prefill_ms_per_cached_token=self.prefill_cached_ms / self.speed,
            decode_base_ms=self.decode_base_ms / self.speed,
            decode_ms_per_request=self.decode_request_ms / self.speed,
            decode_ms_per_context_token=self.decode_context_ms / self.speed,
            transfer_bytes_per_ms=row_bytes / row_ms if row_ms else 0.0,
        )

    def _seconds(self, ms: float) -> float:
        return ms / 1000.0 / self.speed


@dataclass
class Noise:
    """Factors on durations, uniform in 1 ± `jitter`, the same for the same seed; `slow` multiplies
    on top."""

    jitter: float = 0.0
    seed: int = 0
    slow: float = 1.0
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def on(self, seconds: float) -> float:
        """`seconds` as they come out this time."""
        if seconds and self.jitter:
            seconds *= 1.0 + self.jitter * (2.0 * self._random.random() - 1.0)
        return seconds * self.slow


@dataclass(frozen=True)
class TimingOptions:
    """The timing model as flags: a part of a mock worker's configuration."""

    encode_base_ms: float = milliseconds(5.0, "Time of an encoder run.", section="Timing")
    encode_patch_ms: float = milliseconds(0.02, "Time that each patch adds to an encoder run.")
    encode_token_ms: float = milliseconds(0.0, "Time that each embedding adds to an encoder run.")
    prefill_base_ms: float = milliseconds(5.0, "Time of a step that computes prompt tokens.")
    prefill_token_ms: float = milliseconds(
        0.1, "Time that each computed prompt token adds to a step."
    )
    prefill_cached_ms: float = milliseconds(
        0.001, "Time that each reused prompt token adds to a step."
    )
    decode_base_ms: float = milliseconds(10.0, "Time of a step that decodes.")
    decode_request_ms: float = milliseconds(
        0.1, "Time that each choice adds to a step that decodes."
    )
    decode_context_ms: float = milliseconds(
        0.0002, "Time that each token of the choices' contexts adds to a step that decodes."
    )
    kv_block_ms: float = milliseconds(0.05, "Time to copy a KV block from another worker.")
    kv_host_block_ms: float = milliseconds(
        0.05, "Time to copy a KV block to or from host memory below the KV cache."
    )
    kv_disk_block_ms: float = milliseconds(0.5, "Time to write a KV block to disk, or to read it.")
    ec_token_ms: float = milliseconds(0.002, "Time to copy the embedding of one token.")
    speed: float = option(
        1.0,
        "Every duration is divided by it; inf for no time at all.",
        "factor",
        above=0,
        maximum=math.inf,
    )
    jitter: float = option(
        0.0, "Share by which durations vary at random.", "share", minimum=0, below=1
    )
    seed: int = option(
        0,
        "Seed of the random choices of --jitter and --faults.",
        "number",
        minimum=-(1 << 63),
        maximum=(1 << 63) - 1,
    )

    def timing(self) -> Timing:
        """`ConfigError` if a duration is negative or the speed is not positive."""
        names = [name for name in Timing.__dataclass_fields__ if name != "speed"]
        values = {name: float(getattr(self, name)) for name in names}
        wrong = [name for name, value in values.items() if not value >= 0.0]
        if wrong:
            raise ConfigError(f"{wrong[0]}: {values[wrong[0]]} is negative")
        if not self.speed > 0.0:
            raise ConfigError(f"speed: {self.speed} is not positive")
        return Timing(**values, speed=self.speed)
