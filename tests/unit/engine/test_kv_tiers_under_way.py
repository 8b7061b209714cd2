"""KV that is on its way from a tier, on a real engine: aborted, shared, preempted, too late."""

import threading
from pathlib import Path
from typing import Any

import pytest

from connectors.tiers.base import Copied, TierCopy
from connectors.tiers.files import disk_bytes
from protocol.kv_events import EventBatch, EventSource, short_key
from protocol.registry import InstanceInfo, Rates
from protocol.types import GenerateRequest, SamplingParams
from services.engine.engine import Engine
from services.engine.reports import load_of
from services.engine.scheduling.rates import RateMeter
from services.master.config import MasterConfig
from services.master.fleet.fleet import Fleet
from services.membership.config import parse_events
from tests.conftest import ModelDir
from tests.support.conversations import LONG
from tests.support.engine_pairs import Pair, expected
from tests.support.engines import listening
from tests.support.tiered_engines import (
    BLOCK,
    FULL,
    MIB,
    PROMPTS,
    TOKENS,
    bytes_of_block,
    on_disk,
    opened,
    plain,
    serve,
    tier,
    turns,
)


@pytest.fixture(autouse=True)
def slow_to_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine for which any tier is worth its while."""
    monkeypatch.setattr(RateMeter, "rates", lambda self: Rates(prefill_ms_per_token=50.0))


class _Late(TierCopy):
    """A copy that is said to have ended once `arrive` is set."""

    def __init__(self, copy: TierCopy, arrive: threading.Event) -> None:
        self._copy = copy
        self._arrive = arrive

    def poll(self) -> Copied | None:
        return self._copy.poll() if self._arrive.is_set() else None


def held_back(worker: Engine) -> threading.Event:
    """What comes from host memory from here on arrives once the event is set."""
    arrive, store = threading.Event(), tier(worker, "host").store
    load = store.load

    def late(*args: Any) -> TierCopy:
        return _Late(load(*args), arrive)

    store.load = late
    return arrive


def begun(worker: Engine, name: str, prompt: list[int]) -> None:
    """A request whose KV is on its way."""
    assert worker.generate is not None
    params = SamplingParams(max_tokens=TOKENS, temperature=0.0, ignore_eos=True)
    worker.generate.add(GenerateRequest(name, prompt, params))
    worker.step()
    assert worker.generate.tiers.active
    assert worker.generate.tiers.owned_blocks()
    assert worker.check_integrity() == []


def test_an_abort_while_kv_comes_back_leaks_nothing(model_dir: ModelDir) -> None:
    folder = model_dir("qwen2_5_vl")
    expected = plain(folder)
    worker = opened(folder, kv_host_bytes=8 * MIB)
    try:
        turns(worker, PROMPTS, "a")
        arrive = held_back(worker)
        begun(worker, "gone", PROMPTS[0])
        assert worker.generate is not None
        worker.generate.abort(["gone"])
        worker.step()
        assert worker.check_integrity() == []
        assert worker.generate.tiers.owned_blocks(), "they may still be written to"
        arrive.set()
        assert turns(worker, PROMPTS, "b") == expected
        assert worker.generate.tiers.owned_blocks() == []
    finally:
        worker.close()


def test_two_requests_share_what_is_on_its_way(model_dir: ModelDir) -> None:
    folder = model_dir("qwen2_5_vl")
    expected = plain(folder)
    worker = opened(folder, kv_host_bytes=8 * MIB)
    try:
        turns(worker, PROMPTS, "a")
        onboarded = tier(worker, "host").onboarded
        assert serve(worker, [("x", PROMPTS[0]), ("y", PROMPTS[0])]) == expected[:1] * 2
        assert tier(worker, "host").onboarded == onboarded + FULL
    finally:
        worker.close()


def test_requests_are_preempted_while_kv_comes_back(model_dir: ModelDir) -> None:
    """A pool for two prompts without their outputs: requests take one another's blocks."""
    folder = model_dir("qwen2_5_vl")
    expected = plain(folder)
    worker = opened(folder, num_blocks=2 * FULL + 2, kv_host_bytes=8 * MIB)
    try:
        turns(worker, PROMPTS, "a")
        for name in "bc":
            asked = [(f"{name}{number}", prompt) for number, prompt in enumerate(PROMPTS)]
            assert serve(worker, asked) == expected
        assert worker.counters()["preemptions"] > 0
        assert tier(worker, "host").onboarded > 0
    finally:
        worker.close()


def test_a_request_waits_no_longer_than_computing_takes(model_dir: ModelDir) -> None:
    folder = model_dir("qwen2_5_vl")
    expected = plain(folder)
    ticks = [0.0]
    worker = opened(folder, kv_host_bytes=8 * MIB, clock=lambda: ticks[0])
    try:
        turns(worker, PROMPTS, "a")
        arrive = held_back(worker)
        begun(worker, "late", PROMPTS[0])
        assert worker.generate is not None
        ticks[0] += 0.050 * FULL * BLOCK - 0.001
        worker.step()
        assert not worker.generate.progressed
        ticks[0] += 0.002
        tokens: list[int] = []
        while len(tokens) < TOKENS:
            for output in worker.step()[0]:
                tokens += output.token_ids
        assert tokens == expected[0]
        assert worker.counters()["kv_onboards_given_up"] == 1
        arrive.set()
        assert turns(worker, PROMPTS, "b") == expected
    finally:
        worker.close()


def test_a_reset_forgets_what_tiers_hold(model_dir: ModelDir, tmp_path: Path) -> None:
    folder = model_dir("qwen2_5_vl")
    expected = plain(folder)
    worker = on_disk(folder, tmp_path, kv_host_bytes=8 * MIB)
    try:
        turns(worker, PROMPTS, "a")
        arrive = held_back(worker)
        begun(worker, "b", PROMPTS[0])
        assert worker.generate is not None
        worker.generate.abort(["b"])
        worker.reset_caches(prefix=True, encoder=False)
        assert [len(t.shelf) for t in worker.generate.tiers.tiers] == [0, 0]
        arrive.set()
        assert turns(worker, PROMPTS, "c") == expected
        assert worker.counters()["cached_tokens"] == 0
    finally:
        worker.close()


def test_events_tell_what_each_tier_holds(model_dir: ModelDir, tmp_path: Path) -> None:
    """A master's view, from the events of two engines that use one folder after the other."""
    fleet = Fleet("m", MasterConfig())
    source = EventSource("tcp://127.0.0.1:1")
    info = InstanceInfo("p", "prefill", "http://p:1", "m", events=[source])
    held = fleet.add(info, 0.0, 1e9)
    row_bytes = bytes_of_block(model_dir("qwen2_5_vl"))
    sizes = {"kv_host_bytes": 9 * row_bytes, "kv_disk_bytes": 30 * disk_bytes(row_bytes)}
    for life in "ab":
        worker = opened(
            model_dir("qwen2_5_vl"), kv_disk_path=str(tmp_path), **sizes,
            events=parse_events("", "127.0.0.1", default=True),
        )  # fmt: skip
        try:
            heard = listening(worker)
            turns(worker, PROMPTS, life)
            held.forget_blocks(0)
            fleet.events.apply(held, EventBatch(0.0, heard))
            assert worker.generate is not None
            known = {
                "pool": worker.generate.scheduler.blocks.known(),
                **{t.store.name: t.shelf.keys() for t in worker.generate.tiers.tiers},
            }
            for name, index in (
                ("pool", fleet.blocks), ("host", fleet.exact.host), ("disk", fleet.exact.disk)
            ):  # fmt: skip
                assert set(index.keys(0)) == {short_key(key) for key in known[name]}, name
            assert (len(known["host"]), len(known["disk"])) == (9, 30)
            rates = load_of(worker).rates
            assert rates.disk_ms_per_token > 0 or life == "a"
        finally:
            worker.close()


def test_kv_that_came_back_is_handed_over(model_dir: ModelDir, tmp_path: Path) -> None:
    """A prefill worker whose pool holds one prompt: each comes from host memory the second time."""
    pair = Pair(model_dir("qwen3"), tmp_path / "shm", num_blocks=8, kv_host_bytes=8 * MIB)
    for number, text in enumerate([LONG.upper(), LONG[::-1]] * 2):
        pair.outputs = {"prefill": [], "decode": []}
        if number >= 2:
            pair.decode.reset_caches(prefix=True, encoder=False)
        request = pair.request(text)
        pair.to_decode(request)
        pair.to_prefill(request)
        pair.until(lambda: pair.finished("decode") == 1)
        assert pair.tokens("decode") == expected(pair, text)
        pair.until(lambda: not pair.prefill.generate.tiers.active)  # type: ignore[union-attr]
    assert pair.prefill.counters()["kv_host_onboarded_blocks"] > 0
    pair.settle()
