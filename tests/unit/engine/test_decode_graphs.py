"""Recorded decode steps give the tokens of eager ones: buckets, padding and static buffers, with
`Rerun` in the place of CUDA graphs."""

import time
from collections import Counter
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from protocol.types import EncodeRequest
from services.engine.engine import Engine
from services.engine.model.decode_graphs import DecodeGraphs, bucket_sizes, padded
from services.engine.model.runner import Runner
from tests.conftest import ModelDir
from tests.support.conversations import LONG, asking, picture
from tests.support.engines import DEADLINE_S, engine, request_of, run
from tests.support.replayed_steps import Rerun, use
from tests.support.thinned import thinned

SIZES = [1, 2, 4, 8, 9]  # of `max_num_seqs=9`
SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 0.9, "top_p": 0.9},
}
Tokens = dict[tuple[str, int], list[int]]


def served(worker: Engine, path: Any, count: int, **sampling: Any) -> Tokens:
    """`count` requests of several lengths that end one after another."""
    requests = []
    for i in range(count):
        words = f"{i} {LONG}" if i % 2 else f"Hello {i}"
        pictures = [picture(i)] if i % 3 == 0 and worker.encode is not None else []
        values = {"max_tokens": 8 + 2 * i, "ignore_eos": True, "seed": i, **sampling}
        requests.append(request_of(path, asking(*pictures, words), f"r{i}", **values))
    _encode(worker, [encode for _, encode in requests])
    tokens = run(worker, requests)
    assert worker.check_integrity() == []
    worker.reset_caches(prefix=True, encoder=True)
    return tokens


def _encode(worker: Engine, requests: list[EncodeRequest]) -> None:
    """All pictures first, so that none delays its request: how many run at once is then certain."""
    missing = {item.mm_hash for request in requests for item in request.items}
    if worker.encode is None:
        return
    for request in requests:
        worker.encode.add(request)
    deadline = time.monotonic() + DEADLINE_S
    while missing:
        assert time.monotonic() < deadline
        _, encoded = worker.step()
        missing -= {output.mm_hash for output in encoded}


def runner_of(worker: Engine) -> Runner:
    assert worker.generate is not None
    runner = worker.generate._runs._runner
    assert isinstance(runner, Runner)
    return runner


@pytest.fixture(scope="module")
def both(model_dir: ModelDir) -> Iterator[tuple[Engine, Engine, Rerun]]:
    """An engine whose steps are eager, one whose decode steps are recorded, and the recordings."""
    path, capture = model_dir("qwen2_5_vl"), Rerun()
    options: dict[str, Any] = {"max_num_seqs": 9, "block_size": 4, "prefix_caching": False}
    eager = engine(path, **options)
    with pytest.MonkeyPatch.context() as patch:
        use(patch, capture)
        recorded = engine(path, **options)
    yield eager, recorded, capture
    eager.close()
    recorded.close()


@pytest.mark.parametrize(
    ("count", "sampling"),
    thinned(
        product([1, 2, 3, 5, 9], ["greedy", "seeded"]),
        lambda count, sampling: sampling == ("greedy" if count in (1, 3) else "seeded"),
    ),
)
def test_the_tokens_are_those_of_eager_steps(
    count: int, sampling: str, both: tuple[Engine, Engine, Rerun], model_dir: ModelDir
) -> None:
    path, (eager, recorded, capture) = model_dir("qwen2_5_vl"), both
    expected = served(eager, path, count, **SAMPLING[sampling])
    capture.replayed.clear()
    assert served(recorded, path, count, **SAMPLING[sampling]) == expected
    assert len(capture.recorded) == len(SIZES)
    fullest = SIZES[::-1].index(next(size for size in SIZES if size >= count))
    assert Counter(capture.replayed)[fullest] > 4, "the largest batch was to be replayed"


@pytest.mark.parametrize("family", ["gemma3", "qwen3", "llama", "qwen3_vl"])
def test_every_family_of_layers_can_be_recorded(
    family: str, model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = model_dir(family)
    expected = served(engine(path), path, 3)
    capture = Rerun()
    use(monkeypatch, capture)
    assert served(engine(path), path, 3) == expected
    assert len(capture.replayed) > 8


def test_padding_rows_write_to_the_reserved_block_only(
    model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = model_dir("qwen3")
    use(monkeypatch, Rerun())
    worker = engine(path, num_blocks=40, block_size=4, max_num_seqs=8)
    runner = runner_of(worker)
    graphs, pool, size = runner._graphs, runner._cache.pool, runner._cache.block_size
    assert graphs is not None
    assert len(pool) == 41
    assert worker.ready().num_blocks == 40, "requests do not get the reserved block"
    checked = []
    forward = DecodeGraphs.forward

    def watched(self: DecodeGraphs, arrays: Any) -> torch.Tensor | None:
        before = pool.clone()
        logits = forward(self, arrays)
        if logits is not None:
            mine = set(zip(arrays["slot_blocks"], arrays["slot_offsets"], strict=True))
            changed = (pool != before).view(len(pool), -1)
            blocks = set(torch.nonzero(changed.any(1))[:, 0].tolist())
            assert blocks - {40} == {int(block) for block, _ in mine}
            checked.append(len(arrays["contexts"]))
        return logits

    monkeypatch.setattr(DecodeGraphs, "forward", watched)
    key = runner._cache.key(0)
    written = key[40].clone()
    served(worker, path, 3)
    assert {1, 2, 3} <= set(checked)
    assert not torch.equal(key[40, 0], torch.zeros_like(key[40, 0])), "padding computes something"
    assert torch.equal(key[40, 1:], written[1:])
    assert size == 4


def test_what_was_not_recorded_runs_eagerly(
    model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = model_dir("qwen2_5_vl")
    scored = {"prompt_logprobs": 1, "max_tokens": 1}
    expected = served(engine(path), path, 3, **scored), served(engine(path), path, 2, n=3)
    capture = Rerun()
    use(monkeypatch, capture)
    assert served(engine(path), path, 3, **scored) == expected[0]
    assert capture.replayed == [], "these steps compute prompts"
    assert served(engine(path, max_num_seqs=2), path, 2, n=3) == expected[1]


def test_a_prompt_whose_last_token_is_computed_alone_starts_all_choices(
    model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of one row, whose logits are asked for three times."""
    path = model_dir("qwen3")
    request, _ = request_of(path, asking(LONG), "r", n=3)
    options: dict[str, Any] = {"max_num_batched_tokens": len(request.token_ids) - 1}
    tokens = []
    for record in (False, True):
        if record:
            use(monkeypatch, Rerun())
        request, encode = request_of(path, asking(LONG), "r", n=3)
        tokens.append(run(engine(path, **options), [(request, encode)]))
    assert tokens[0] == tokens[1]
    assert len(tokens[0]) == 3


def test_more_rows_than_the_largest_bucket_run_eagerly(
    model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = model_dir("qwen3")
    expected = served(engine(path), path, 5)
    capture = Rerun()
    use(monkeypatch, capture)
    worker = engine(path)
    runner = runner_of(worker)
    graphs = DecodeGraphs(runner._model, runner._cache, capture, 256, most=2, longest=4096)
    runner._graphs = graphs
    sizes = []
    forward = graphs.forward

    def counted(arrays: Any) -> torch.Tensor | None:
        logits = forward(arrays)
        sizes.append((len(arrays["contexts"]), logits is not None))
        return logits

    monkeypatch.setattr(graphs, "forward", counted)
    assert served(worker, path, 5) == expected
    assert (3, False) in sizes
    assert (2, True) in sizes
    assert (3, True) not in sizes


@pytest.mark.parametrize("most", [1, 2, 3, 8, 9, 64, 65, 500, 512, 4096])
def test_buckets_reach_the_limit_and_waste_little(most: int) -> None:
    sizes = bucket_sizes(most)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == min(most, 512)
    assert len(sizes) <= 28
    for rows in range(17, sizes[-1] + 1):
        bucket = next(size for size in sizes if size >= rows)
        assert bucket <= 1.45 * rows


def test_rows_are_padded_with_the_first_token_of_the_reserved_block() -> None:
    arrays = {
        "ids": np.array([7, 8]),
        "positions": np.array([5, 9]),
        "slot_blocks": np.array([3, 2]),
        "slot_offsets": np.array([1, 1]),
        "rotary": np.array([[15, 19], [25, 29], [35, 39]]),
        "tables": np.array([[4, 3, 0], [6, 5, 2]]),
        "contexts": np.array([6, 10], dtype=np.int32),
    }
    found = padded(arrays, 4, 77)
    assert found["columns"].tolist() == [
        [7, 8, 0, 0],
        [5, 9, 0, 0],
        [3, 2, 77, 77],
        [1, 1, 0, 0],
        [15, 19, 0, 0],
        [25, 29, 0, 0],
        [35, 39, 0, 0],
    ]
    assert found["tables"].tolist() == [[4, 3, 0], [6, 5, 2], [77, 77, 77], [77, 77, 77]]
    assert found["contexts"].tolist() == [6, 10, 1, 1]
    assert found["contexts"].dtype == np.int32
