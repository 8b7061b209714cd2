"""Workers, prompts and requests of the master's benchmarks."""

import random

from protocol.kv_events import EventSource
from protocol.placement import ScheduleRequest
from protocol.registry import InstanceInfo, InstanceRole, Load, Rates

CHAIN = 125
PROMPT_BLOCKS = 100
BLOCK_SIZE = 16
SEED = 7
RATES = Rates(
    encode_ms_per_token=0.05,
    prefill_ms_per_token=0.02,
    decode_base_ms=15.0,
    decode_ms_per_request=0.1,
    decode_ms_per_context_token=1e-5,
    transfer_bytes_per_ms=2e7,
)
LOAD = Load(free_blocks=100_000, total_blocks=100_000, rates=RATES)


def workers(
    counts: dict[InstanceRole, int], endpoint: str = "tcp://127.0.0.1:1"
) -> list[InstanceInfo]:
    """Each publishes its events under its own topic at `endpoint`."""
    return [
        InstanceInfo(
            f"{role}-{i}", role, f"http://{role}-{i}:8000", "m", kv_bytes_per_token=50_000,
            events=[EventSource(endpoint, topic=f"{role}-{i} ")], load=LOAD,
        )
        for role, count in counts.items()
        for i in range(count)
    ]  # fmt: skip


def chains(rng: random.Random, blocks: int) -> list[list[int]]:
    """Prompts of `CHAIN` block keys each."""
    return [[rng.getrandbits(64) for _ in range(CHAIN)] for _ in range(blocks // CHAIN)]


def requests_of(rng: random.Random, prompts: list[list[int]], count: int) -> list[ScheduleRequest]:
    """Each shares a random part of its prefix with a prompt that is cached somewhere."""
    found = []
    for i in range(count):
        shared = rng.randrange(PROMPT_BLOCKS + 1)
        own = [rng.getrandbits(64) for _ in range(PROMPT_BLOCKS - shared)]
        keys = rng.choice(prompts)[:shared] + own
        tokens = PROMPT_BLOCKS * BLOCK_SIZE + 5
        found.append(ScheduleRequest(f"r{i}", tokens, block_keys=keys, max_tokens=200))
    return found
