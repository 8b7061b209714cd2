"""Hand-overs that end otherwise than they should: nothing is held, tokens are right."""

import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch

from connectors.base import EC_TENSOR, Entry
from connectors.config import ECConfig
from tests.conftest import ModelDir
from tests.support.conversations import LONG, asking, picture
from tests.support.engine_pairs import TOKENS, Pair, expected
from tests.support.engines import DEADLINE_S, engine, request_of
from tests.support.links import Side

HIDDEN = 128


def written(pair: Pair) -> None:
    """Wait until the thread that writes files has ended what prefill asked it for, so that a
    failure is known to the step that follows."""
    transport = pair.prefill.kv._node.transport  # type: ignore[union-attr]
    deadline = time.monotonic() + DEADLINE_S
    while transport.check_integrity():
        assert time.monotonic() < deadline
        time.sleep(0.0005)


@pytest.mark.parametrize("ahead", [True, False])
def test_a_disk_that_fails_in_the_middle_of_prefill(
    model_dir: ModelDir, tmp_path: Path, ahead: bool
) -> None:
    """The offer ends while prefill has chunks to go; prefill answers, without a handle, and decode
    computes what it cannot have: the disk does not tell it, so it waits for the lease to end. The
    next request is handed over again."""
    pair = Pair(model_dir("qwen3"), tmp_path / "kv", transport="shared_storage", lease_s=4.0)
    request = pair.request()
    if ahead:
        pair.to_decode(request)
    pair.to_prefill(request)
    pair.step("prefill")
    folders = list((tmp_path / "kv").glob(".regions-*/kv"))
    away = [path.rename(path.with_name("away")) for path in folders]
    while pair.finished("prefill") == 0:
        pair.step("prefill")
        written(pair)
    for path, folder in zip(away, folders, strict=True):
        path.rename(folder)
    (output,) = pair.outputs["prefill"]
    assert output.kv_transfer_params is None and output.finish_reason == "length"
    assert output.token_ids == expected(pair)[:1]
    if ahead:
        pair.until(lambda: pair.finished("decode") == 1)
        assert pair.tokens("decode") == expected(pair)
    pair.until(lambda: pair.idle)
    again = msgspec.structs.replace(pair.request(f"{LONG} Again."), request_id="s")
    pair.outputs = {"prefill": [], "decode": []}
    pair.to_prefill(again)
    pair.until(lambda: pair.finished("prefill") == 1)
    (output,) = pair.outputs["prefill"]
    assert output.kv_transfer_params is not None
    pair.to_decode(
        msgspec.structs.replace(again, emitted={0: output.token_ids}), output.kv_transfer_params
    )
    pair.until(lambda: pair.finished("decode") == 1)
    assert output.token_ids + pair.tokens("decode") == expected(pair, f"{LONG} Again.")
    assert pair.decode.counters()["kv_fetched"] == 1
    pair.settle()


def test_choices_that_go_on_are_handed_over_once(model_dir: ModelDir, tmp_path: Path) -> None:
    """Each of them ends prefill by itself, at its own time; the KV of the prompt is the same."""
    pair = Pair(model_dir("qwen3"), tmp_path / "shm")
    request = pair.request(n=2)
    first = expected(pair)[:2]
    pair.to_prefill(msgspec.structs.replace(request, emitted={0: first, 1: first[:1]}))
    pair.until(lambda: pair.finished("prefill") == 2)
    handed = [o.kv_transfer_params for o in pair.outputs["prefill"]]
    assert sum(params is not None for params in handed) == 1
    assert pair.tokens("prefill", 0) == expected(pair)[2:3]
    assert pair.tokens("prefill", 1) == expected(pair)[1:2]
    assert pair.prefill.generate is not None
    pair.prefill.generate.abort(["r"])
    pair.settle()


def test_an_engine_that_ends_tells_whom_it_has_asked(model_dir: ModelDir, tmp_path: Path) -> None:
    """What was held for it is free long before a lease has passed."""
    pair = Pair(model_dir("qwen3"), tmp_path / "shm")
    request = pair.request()
    pair.to_prefill(request)
    pair.until(lambda: pair.finished("prefill") == 1)
    (output,) = pair.outputs["prefill"]
    assert pair.decode.generate is not None
    held = pair.decode.generate.scheduler.blocks.allocate(64)
    asked = msgspec.structs.replace(request, emitted={0: output.token_ids})
    pair.to_decode(asked, output.kv_transfer_params)
    assert pair.decode.kv is not None and held is not None
    fetches = pair.decode.kv.consumer._fetches  # type: ignore[attr-defined]
    pair.until(lambda: any(fetch.fed for fetch in fetches.values()))
    assert pair.prefill.gauges()["kv_cache_usage_perc"] > 0
    pair.decode.close()
    pair.until(lambda: pair.prefill.gauges()["kv_cache_usage_perc"] == 0, "prefill")
    assert pair.prefill.kv is not None
    assert pair.prefill.kv.stats().leases_expired == 0
    pair.prefill.close()


def test_an_engine_that_ends_gives_its_pictures_back(model_dir: ModelDir, tmp_path: Path) -> None:
    """One that a store keeps for it, one that it waits for; and it closes what it can although
    something cannot be closed."""
    model = model_dir("qwen2_5_vl")
    ec = ECConfig("shm", path=str(tmp_path), load_timeout_s=10.0, timeout_s=10.0)
    worker = engine(model, parts=("language",), ec=ec, num_blocks=64)
    producer = Side("shm", tmp_path, produces=True)
    producer.node.share("ec", f"{model.name}@test:float32")
    request, _ = request_of(model, asking(picture(1), picture(2), LONG), "r", max_tokens=TOKENS)
    kept, missing = (item.mm_hash for item in request.mm_items)
    embedding = {EC_TENSOR: torch.zeros(request.mm_items[0].length, HIDDEN)}
    params = producer.ec.offer(kept, Entry(embedding, ("r",)))
    assert params is not None
    store = producer.ec.store  # type: ignore[attr-defined]
    asked = msgspec.structs.replace(request, ec_transfer_params={kept: params, missing: params})
    assert worker.generate is not None and worker.generate.add(asked) == []

    def until(done: Callable[[], bool], *step: Callable[[], object]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not done():
            assert time.monotonic() < deadline
            for one in (producer.poll, *step):
                one()
            time.sleep(0.0005)

    embeddings = worker.generate.scheduler.embeddings
    first = request.mm_items[0]
    until(lambda: bool(store.wanted(missing)) and embeddings.ready(first), worker.step)
    assert store._pinned(kept), "it is kept for a request that is not done"

    def broken() -> None:
        raise OSError("cannot be closed")

    assert worker.kv is not None
    worker.kv.close = broken  # type: ignore[method-assign]
    with pytest.raises(OSError, match="cannot be closed"):
        worker.close()
    until(lambda: not store.wanted(missing) and not store._pinned(kept))
    assert store.grants.expired == store.lapsed == 0
    producer.close()
    assert list(tmp_path.iterdir()) == []
