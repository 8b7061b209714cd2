"""What the simulated workers are: their speed, their caches, how long messages take."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.simulate.prompts import PATCHES_PER_TOKEN
from services.mock.timing import Timing

CALIBRATED = Path(__file__).with_name("calibrated.json")
RATE_ERROR = 0.2
"""By which share what workers say of their speed is wrong at most, in comparisons of policies: some
reckon with it."""


@dataclass(frozen=True)
class Profile:
    """Sizes are tokens unless the name says bytes or blocks; times are seconds unless it says ms"""

    name: str  # by which reports call it
    timing: Timing  # what steps of the engines take
    block_size: int = 128  # of KV
    prefill_blocks: int = 2048  # in a prefill worker's pool
    decode_blocks: int = 2048  # in a decode worker's pool
    step_tokens: int = 2048  # computed in a step at most
    max_prefill_beside_decode: int = 512  # prompt tokens in a step that decodes too
    max_running: int = 64  # requests in a worker's steps
    max_patches: int = 16384  # of pictures in one run of an encoder
    row_bytes: int = 4096  # of one embedding
    kv_bytes_per_token: int = 4096  # of KV
    encoder_bytes: int = 256 << 20  # of embeddings that an encoder keeps
    prefill_media_bytes: int = 256 << 20  # of embeddings that a prefill worker keeps
    message_s: float = 0.001  # one way between two processes
    event_s: float = 0.005  # from a change in a cache to the master
    heartbeat_s: float = 1.0  # between reports of a worker
    jitter: float = 0.1  # durations vary by up to this share
    rate_error: float = 0.0  # by which share each worker's rates are wrong at most, all the time
    # Of the workers of each role in turn, as shares of `timing`'s: of a mixed fleet
    speeds: tuple[float, ...] = (1.0,)
    facts: dict[str, Any] = field(default_factory=dict)  # how a calibrated one was measured

    def of(self, number: int) -> Profile:
        """That of worker `number` of a role."""
        speed = self.speeds[number % len(self.speeds)]
        return self if speed == 1.0 else replace(self, timing=replace(self.timing, speed=speed))

    def unloaded_ttft(self, tokens: int, pictures: list[int]) -> float:
        """To the first token on an idle fleet with empty caches: all pictures at once, the largest
        last, then the whole prompt; `pictures` are their tokens."""
        timing = self.timing
        waited = 4 * self.message_s
        if pictures:
            most = max(pictures)
            encoded = timing.encode_s(most * PATCHES_PER_TOKEN, most)
            waited += encoded + timing.embedding_s(most) + 2 * self.message_s
        full, rest = divmod(tokens, self.step_tokens)
        return waited + full * timing.prefill_s(self.step_tokens, 0) + timing.prefill_s(rest, 0)

    def unloaded_tpot(self, tokens: int, output: int) -> float:
        """Per output token after the first, alone on a decode worker, its KV's copy included."""
        steps = max(1, output - 1)
        copied = self.timing.kv_s(-(-tokens // self.block_size)) + 2 * self.message_s
        context = steps * (tokens + 1) + steps * (steps - 1) // 2
        return (copied + self.timing.decode_s(steps, context, steps)) / steps


def calibrated(path: Path = CALIBRATED) -> Profile:
    """Measured on our workers by `--calibrate`."""
    facts = msgspec.json.decode(path.read_bytes())
    timing = Timing(**facts["timing"])
    return Profile("calibrated", timing, facts=facts)
