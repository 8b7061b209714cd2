"""KV below the pool, on a real engine: tokens stay the same, whatever tiers hold, lose or refuse."""

import random
import threading
from pathlib import Path
from typing import Any

import pytest

from protocol.registry import Rates
from protocol.types import GenerateRequest, SamplingParams
from services.engine.engine import Engine
from services.engine.scheduling.rates import RateMeter
from tests.conftest import ModelDir
from tests.support.engines import engine

BLOCK = 16
POOL = 12  # blocks: two prompts of PROMPT tokens and their outputs
PROMPT = 75
TOKENS = 6
MIB = 1 << 20
PROMPTS = [random.Random(seed).choices(range(5, 200), k=PROMPT) for seed in range(6)]
FULL = PROMPT // BLOCK  # blocks of a prompt that can be found again


@pytest.fixture(autouse=True)
def slow_to_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine for which any tier is worth its while."""
    monkeypatch.setattr(RateMeter, "rates", lambda self: Rates(prefill_ms_per_token=50.0))


def opened(folder: Path, **options: Any) -> Engine:
    return engine(folder, **{"num_blocks": POOL, "max_num_seqs": 4, **options})


def turns(worker: Engine, prompts: list[list[int]], name: str = "") -> list[list[int]]:
    """The outputs of prompts, one after the other; between two, tiers take what they can."""
    return [
        serve(worker, [(f"{name}{number}", prompt)])[0] for number, prompt in enumerate(prompts)
    ]


def serve(worker: Engine, asked: list[tuple[str, list[int]]]) -> list[list[int]]:
    """The outputs of requests that run at once; the books are right afterwards."""
    assert worker.generate is not None
    params = SamplingParams(max_tokens=TOKENS, temperature=0.0, ignore_eos=True)
    tokens: dict[str, list[int]] = {name: [] for name, _ in asked}
    for name, prompt in asked:
        assert worker.generate.add(GenerateRequest(name, prompt, params)) == []
    for _ in range(20_000):
        for output in worker.step()[0]:
            assert output.error is None, output.error
            tokens[output.request_id] += output.token_ids
        if not len(worker.generate) and not worker.generate.tiers.active:
            break
        threading.Event().wait(0.001 if not worker.generate.progressed else 0)
    assert all(len(found) == TOKENS for found in tokens.values())
    assert worker.check_integrity() == []
    return list(tokens.values())


def tier(worker: Engine, name: str) -> Any:
    assert worker.generate is not None
    return next(t for t in worker.generate.tiers.tiers if t.store.name == name)


def plain(folder: Path) -> list[list[int]]:
    worker = opened(folder, num_blocks=256)
    found = turns(worker, PROMPTS)
    worker.close()
    return found


def test_what_the_pool_evicts_comes_back_from_host_memory(model_dir: ModelDir) -> None:
    folder = model_dir("qwen2_5_vl")
    expected = plain(folder)
    worker = opened(folder, kv_host_bytes=8 * MIB)
    try:
        assert turns(worker, PROMPTS, "a") == expected
        before = worker.counters()["cached_tokens"]
        assert turns(worker, PROMPTS, "b") == expected
        host = tier(worker, "host")
        assert host.onboarded >= len(PROMPTS) * FULL - POOL
        assert worker.counters()["cached_tokens"] - before == len(PROMPTS) * FULL * BLOCK
    finally:
        worker.close()
