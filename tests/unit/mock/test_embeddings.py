"""Mock workers that hand embeddings over, on virtual time."""

from typing import Any

import pytest

from protocol.registry import InstanceRole
from protocol.types import EncodeItem, EncodeRequest, GenerateRequest, MMItem
from services.engine.reports import histograms_of, load_of
from services.mock.engine import Engine
from tests.support.mock_runs import TIMING, WORDS, Run, asked, engine, pair

PROMPT = list(range(40))


def media_fleet(**options: Any) -> tuple[Run, Engine, Engine]:
    role: InstanceRole = "encode"
    encoder = engine(3, role=role)
    prefill = engine(1, role="prefill", remote_embeddings=True, **options)
    return Run([encoder, prefill]), encoder, prefill


def picture(name: str = "pic", rows: int = 20) -> EncodeRequest:
    return EncodeRequest(f"e-{name}", [EncodeItem(name, "image", rows, (1, 4, 20), b"data")])


def with_picture(name: str = "r", **more: Any) -> GenerateRequest:
    return asked(name, PROMPT, 2, mm_items=[MMItem("pic", "image", 10, 20)], **more)


def test_prefill_computes_up_to_the_picture_and_waits_there() -> None:
    run, encoder, prefill = media_fleet()
    run.fleet.add(prefill, with_picture())
    run.clock.run(until=0.5)
    assert prefill.core.scheduler.running[0].num_computed == 10 and "r" not in run.answers
    run.fleet.add_encode(encoder, picture())
    run.clock.run()
    assert run.times("r")[0] == pytest.approx(0.5 + 0.030)
    assert run.tokens("r") == WORDS.answer(PROMPT, [MMItem("pic", "image", 10, 20)], length=2)
    run.check()


def test_a_worker_that_does_it_all_waits_for_what_it_encodes() -> None:
    """The call that brings the picture may come after the request that needs it."""
    worker = engine(1, role="pdfusion")
    run = Run([worker])
    run.fleet.add(worker, with_picture())
    run.clock.run(until=0.5)
    assert "r" not in run.answers
    run.fleet.add_encode(worker, picture())
    run.clock.run()
    assert len(run.tokens("r")) == 2 and run.times("r")[0] > 0.5
    assert worker.counters()["mm_encoded"] == 1
    run.check()


def test_a_worker_that_does_it_all_waits_no_longer_than_a_lease() -> None:
    worker = engine(1, role="pdfusion", lease_s=7.0)
    run = Run([worker])
    run.fleet.add(worker, with_picture())
    run.clock.run()
    error = run.last("r").error
    assert error is not None and error.code == "embedding_lost"
    assert run.clock.time() == pytest.approx(7.0, abs=0.1)
    run.check()


@pytest.mark.parametrize("handle", [{"peer_host": "h", "peer_port": 3}, {}])
def test_an_embedding_that_is_there_is_fetched_once(handle: dict[str, Any]) -> None:
    run, encoder, prefill = media_fleet()
    run.fleet.add_encode(encoder, picture())
    run.clock.run(until=1.0)
    for name in ("a", "b"):
        run.fleet.add(prefill, with_picture(name, ec_transfer_params={"pic": handle}))
    run.clock.run()
    assert len(run.tokens("a")) == len(run.tokens("b")) == 2
    embeddings = prefill.core.scheduler.embeddings
    assert (embeddings.queries, embeddings.hits) == (2, 1)


def test_a_request_waits_for_embeddings_from_its_arrival_to_the_last_ones() -> None:
    run, encoder, prefill = media_fleet()
    run.fleet.add(prefill, with_picture("first"))
    run.clock.run(until=0.5)
    run.fleet.add_encode(encoder, picture())
    run.clock.run()
    run.fleet.add(prefill, with_picture("second"))
    run.clock.run()
    waits = histograms_of(prefill)["request_embedding_wait_seconds"]
    assert sum(waits.counts) == 1, "the second finds it"
    assert 0.5 <= waits.total < 0.53
    assert prefill.counters()["embedding_lost"] == 0


def test_a_lost_embedding_fails_the_request_unless_the_media_came_with_it() -> None:
    run, _, prefill = media_fleet()
    handle = {"pic": {"peer_host": "h", "peer_port": 3}}
    run.fleet.add(prefill, with_picture("without", ec_transfer_params=handle))
    run.clock.run()
    error = run.last("without").error
    assert error is not None and error.code == "embedding_lost"
    assert prefill.counters()["embedding_lost"] == 1
    assert sum(histograms_of(prefill)["request_embedding_wait_seconds"].counts) == 0
    run.fleet.add(prefill, with_picture("with", ec_transfer_params=handle), local=["pic"])
    run.clock.run()
    assert len(run.tokens("with")) == 2 and prefill.ec.encoded == 1
    run.check()


def test_an_embedding_of_another_length_is_refused() -> None:
    run, encoder, prefill = media_fleet()
    run.fleet.add_encode(encoder, picture(rows=19))
    run.fleet.add(prefill, with_picture())
    run.clock.run()
    error = run.last("r").error
    assert error is not None and error.code == "embedding_length_mismatch"
    assert prefill.counters()["embedding_lost"] == 0, "it was there, and was another's"
    run.check()


def test_load_is_what_waits_runs_and_is_left_to_compute() -> None:
    run, prefill, _ = pair(max_num_seqs=1)
    for name, size in (("a", 30), ("b", 50)):
        run.fleet.add(prefill, asked(name, list(range(size)), 9))
    run.clock.run(until=0.035)
    load = load_of(prefill)
    assert (load.running, load.queued, load.queued_tokens) == (1, 1, 51)
    assert load.context_tokens == 30 and load.free_blocks == 4096 - 2


def test_the_timing_is_the_one_the_master_is_told() -> None:
    rates = load_of(engine(timing=TIMING)).rates
    assert rates.prefill_ms_per_token == 1 and rates.decode_base_ms == 10
