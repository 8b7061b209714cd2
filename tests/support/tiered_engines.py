"""Engines with KV tiers below a small pool, and what they are asked."""

import random
import threading
from functools import lru_cache
from pathlib import Path
from typing import Any

from protocol.types import GenerateRequest, SamplingParams
from services.engine.attention.kv_cache import block_bytes
from services.engine.engine import Engine
from tests.support.engines import engine

BLOCK = 16
POOL = 12  # blocks: two prompts of PROMPT tokens and their outputs
PROMPT = 75
TOKENS = 8
MIB = 1 << 20
PROMPTS = [random.Random(seed).choices(range(5, 200), k=PROMPT) for seed in range(6)]
FULL = PROMPT // BLOCK  # blocks of a prompt that can be found again


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


@lru_cache(maxsize=4)
def plain(folder: Path) -> list[list[int]]:
    """What an engine without tiers puts out for all prompts."""
    worker = opened(folder, num_blocks=256)
    found = turns(worker, PROMPTS)
    worker.close()
    return found


def on_disk(folder: Path, files: Path, **options: Any) -> Engine:
    return opened(folder, kv_disk_bytes=8 * MIB, kv_disk_path=str(files), **options)


def bytes_of_block(folder: Path) -> int:
    """Of a model's KV."""
    worker = opened(folder)
    worker.close()
    return block_bytes(worker.layout)
