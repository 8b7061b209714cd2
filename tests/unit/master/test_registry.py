"""Leases, restarts, drains, breakers, and what workers may not claim."""

import math
from typing import Any

import pytest

from protocol.errors import InvalidRequest, ModelNotFound, Unavailable
from protocol.kv_events import (
    AllEmbeddingsCleared,
    BlockRemoved,
    BlockStored,
    EmbeddingRemoved,
    EmbeddingStored,
    EventBatch,
    EventSource,
)
from protocol.registry import Drain, Heartbeat, InstanceInfo, InstanceName, Load, Rates
from services.master.config import MasterConfig
from services.master.fleet.changelog import FleetListener, worker_view
from services.master.fleet.fleet import Fleet
from services.master.fleet.registry import Registry

SOURCE = EventSource("tcp://127.0.0.1:1")


def info(name: str, role: Any = "prefill", **fields: Any) -> InstanceInfo:
    return InstanceInfo(name, role, f"http://{name}:1", **{"model": "m", **fields})


def registry(**config: Any) -> Registry:
    return Registry(MasterConfig(**{"lease": 10.0, **config}))


def penalty(found: Registry, name: str) -> float:
    instance = found.instances[name]
    return float(instance.pool.penalty[instance.row])


def test_a_view_tells_how_fast_a_worker_is() -> None:
    found = registry()
    known = Rates(prefill_ms_per_token=0.3)
    found.register(info("w", load=Load(free_blocks=7, total_blocks=9, rates=known)), 0.0)
    instance = found.instances["w"]
    view = worker_view(instance, found.fleets["m"], 0.0)
    assert (view.rates, view.total_blocks, view.info.load) == (known, 9, Load())
    instance.pool.learn(instance.row, Rates(prefill_ms_per_token=5.0, decode_base_ms=2.0))
    both = Rates(prefill_ms_per_token=0.3, decode_base_ms=2.0)
    assert worker_view(instance, found.fleets["m"], 0.0).rates == both


def test_a_lapsed_lease_removes_a_worker_everywhere() -> None:
    left: list[str] = []

    class Leaving(FleetListener):
        def left(self, info: InstanceInfo) -> None:
            left.append(info.instance_id)

    found = Registry(MasterConfig(lease=10.0), Leaving())
    found.register(info("a", events=[SOURCE]), 0.0)
    found.register(info("b", events=[SOURCE]), 0.0)
    found.apply("a", "", EventBatch(0.0, [BlockStored([1, 2]), EmbeddingStored("p")]))
    assert found.heartbeat(Heartbeat("b"), 9_000.0).known
    assert found.expire(9_999.0) == []
    assert found.expire(10_000.0) == ["a"]
    fleet = found.fleet("m")
    assert (left, len(fleet.blocks), len(fleet.media), list(found.instances)) == (
        ["a"],
        0,
        0,
        ["b"],
    )
    assert not found.heartbeat(Heartbeat("a"), 10_001.0).known
    assert found.expire(19_000.0) == ["b"]


def test_a_restarted_worker_starts_with_empty_caches() -> None:
    found = registry()
    found.register(info("a", generation="1", events=[SOURCE]), 0.0)
    batch = EventBatch(0.0, [BlockStored([1])])
    assert found.apply("a", "1", batch)
    found.register(info("a", generation="1", events=[SOURCE], load=Load(queued=1)), 1.0)
    assert found.fleet("m").blocks.holders(1), "the same process keeps them"
    found.register(info("a", generation="2", events=[SOURCE]), 2.0)
    assert not found.fleet("m").blocks.holders(1)
    assert not found.apply("a", "1", batch), "late events of the old process"
    assert not found.heartbeat(Heartbeat("a", "1"), 3.0).known
    assert not found.deregister(InstanceName("a", "1")).known
    assert found.deregister(InstanceName("a")).known
    assert found.instances == {}


def test_a_worker_restarted_under_another_id_replaces_the_old_one() -> None:
    found = registry()
    found.register(info("old"), 0.0)
    found.register(InstanceInfo("new", "prefill", "http://old:1", "m"), 1.0)
    assert list(found.instances) == ["new"]


def test_a_taken_id_is_refused() -> None:
    found = registry()
    found.register(info("a"), 0.0)
    with pytest.raises(InvalidRequest) as caught:
        found.register(InstanceInfo("a", "prefill", "http://elsewhere:1", "m"), 1.0)
    assert caught.value.code == "duplicate_instance"
    assert found.refused == {"duplicate_instance": 1}
    assert found.instances["a"].info.url == "http://a:1"


@pytest.mark.parametrize(
    "load",
    [
        Load(free_blocks=2, total_blocks=1),
        Load(rates=Rates(prefill_ms_per_token=math.nan)),
        Load(rates=Rates(decode_base_ms=math.inf)),
    ],
)
def test_absurd_loads_are_refused_and_change_nothing(load: Load) -> None:
    found = registry()
    with pytest.raises(InvalidRequest):
        found.register(info("a", load=load), 0.0)
    assert found.instances == {}
    found.register(info("a"), 0.0)
    with pytest.raises(InvalidRequest):
        found.heartbeat(Heartbeat("a", load=load), 9_000.0)
    assert found.refused == {"absurd_load": 2}
    assert found.expire(10_000.0) == ["a"], "a refused heartbeat renews nothing"


def test_two_models_are_kept_apart() -> None:
    found = registry()
    found.register(info("a", model="x", events=[SOURCE]), 0.0)
    found.register(info("b", model="y", events=[SOURCE]), 0.0)
    found.apply("a", "", EventBatch(0.0, [BlockStored([7])]))
    assert found.fleet("x").blocks.holders(7) == 1
    assert found.fleet("y").blocks.holders(7) == 0
    with pytest.raises(ModelNotFound):
        found.fleet("z")
    with pytest.raises(ModelNotFound, match="name one"):
        found.fleet("")


def test_a_drained_worker_gets_nothing_and_keeps_its_caches() -> None:
    found = registry()
    found.register(info("a", events=[SOURCE]), 0.0)
    found.apply("a", "", EventBatch(0.0, [BlockStored([7])]))
    assert found.drain(Drain("a"), 1.0).draining
    assert penalty(found, "a") == math.inf
    assert found.heartbeat(Heartbeat("a"), 2.0).draining
    assert found.fleet("m").blocks.holders(7)
    found.register(info("b"), 0.0)
    assert found.heartbeat(Heartbeat("b", draining=True), 2.0).draining
    assert penalty(found, "b") == math.inf


def test_a_breaker_opens_closes_and_opens_again_at_once() -> None:
    found = registry(breaker_failures=3, breaker_open=5.0, lease=1000.0)
    found.register(info("a"), 0.0)
    found.breakers.failed(["a", "unknown", "a"], 0.0)
    found.breakers.succeeded("a")
    found.breakers.failed(["a", "a"], 0.0)
    assert penalty(found, "a") == 0.0, "not three in a row"
    found.breakers.failed(["a"], 0.0)
    assert penalty(found, "a") == math.inf
    found.expire(4_999.0)
    assert penalty(found, "a") == math.inf
    found.expire(5_000.0)
    assert penalty(found, "a") == 0.0
    found.breakers.failed(["a"], 6_000.0)
    assert penalty(found, "a") == math.inf


def test_the_number_of_workers_is_bounded() -> None:
    found = registry(max_instances=2)
    for name in ("a", "b", "b"):
        found.register(info(name), 0.0)
    with pytest.raises(Unavailable):
        found.register(info("c"), 0.0)
    found.deregister(InstanceName("a"))
    found.register(info("c"), 0.0)


def test_slots_and_rows_are_used_again() -> None:
    found = registry()
    for turn in range(500):
        found.register(info(f"w{turn}", events=[SOURCE]), float(turn))
        found.apply(f"w{turn}", "", EventBatch(0.0, [BlockStored([turn, turn + 1])]))
        if turn >= 5:
            found.deregister(InstanceName(f"w{turn - 5}"))
    fleet = found.fleet("m")
    assert fleet.slots <= 6
    assert len(fleet.pools["prefill"]) == 64
    assert len(fleet.blocks) == 6


def test_events_of_other_media_and_unknown_kinds_are_ignored_and_counted() -> None:
    fleet = Fleet("m", MasterConfig())
    instance = fleet.add(info("e", "encode", events=[SOURCE]), 0.0, 1e4)
    events = [
        BlockStored([1], medium="TAPE"),
        BlockStored([2], medium="GPU"),
        BlockRemoved([2], medium="TAPE"),
        EmbeddingStored("p"),
        EmbeddingStored("p" * 256),
        EmbeddingStored("p" * 257),
        EmbeddingStored("q"),
        EmbeddingRemoved("q"),
    ]
    fleet.events.apply(instance, EventBatch(0.0, list(events), unknown=3))
    assert fleet.events.counts.ignored == 6
    assert (fleet.blocks.holders(1), fleet.blocks.holders(2)) == (0, 1)
    assert (fleet.media.holders("p"), fleet.media.holders("q")) == (1, 0)
    # No request can ask for longer names: they would only fill the index.
    assert (fleet.media.holders("p" * 256), fleet.media.holders("p" * 257)) == (1, 0)
    fleet.events.apply(instance, EventBatch(1.0, [AllEmbeddingsCleared()]))
    assert fleet.media.holders("p") == 0


def test_a_drained_worker_is_taken_back() -> None:
    found = registry()
    found.register(info("a"), 0.0)
    found.drain(Drain("a"), 1.0)
    assert found.heartbeat(Heartbeat("a", draining=True, drained_by_master=True), 2.0).draining
    answer = found.drain(Drain("a", draining=False), 3.0)
    assert (answer.draining, answer.resume, penalty(found, "a")) == (False, True, 0.0)
    late = found.heartbeat(Heartbeat("a", draining=True, drained_by_master=True), 4.0)
    assert (late.draining, late.resume, penalty(found, "a")) == (False, True, 0.0), "unheard yet"
    heard = found.heartbeat(Heartbeat("a"), 5.0)
    assert (heard.draining, heard.resume) == (False, False)
    assert found.drain(Drain("a"), 6.0).draining, "it can be drained again"


def test_a_worker_that_drains_by_itself_is_not_taken_back() -> None:
    found = registry()
    found.register(info("a"), 0.0)
    found.heartbeat(Heartbeat("a", draining=True), 1.0)
    found.drain(Drain("a", draining=False), 2.0)
    assert found.heartbeat(Heartbeat("a", draining=True), 3.0).draining
    assert penalty(found, "a") == math.inf
    assert not found.drain(Drain("nobody", draining=False), 4.0).known


def test_a_worker_whose_engine_stalls_gets_nothing_until_it_goes_on() -> None:
    found = registry(breaker_failures=1, breaker_open=60.0)
    found.register(info("a"), 0.0)
    found.heartbeat(Heartbeat("a", stalled=True), 1_000.0)
    assert penalty(found, "a") == math.inf
    found.breakers.failed(["a"], 1_500.0)
    found.heartbeat(Heartbeat("a", stalled=True), 2_000.0)
    assert penalty(found, "a") == math.inf
    found.heartbeat(Heartbeat("a"), 3_000.0)
    assert penalty(found, "a") == 0.0, "what failed while it stood still is forgiven"


def test_what_happens_to_a_worker_is_logged_with_its_cause(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    found = registry(breaker_failures=1, breaker_open=1.0)
    found.register(info("a"), 0.0)
    found.heartbeat(Heartbeat("a", stalled=True), 1.0)
    found.heartbeat(Heartbeat("a"), 2.0)
    found.breakers.failed(["a"], 3.0)
    found.breakers.failed(["a"], 4.0)  # it is avoided already
    found.expire(2_000.0)
    found.drain(Drain("a"), 2_001.0)
    found.register(info("a", generation="2"), 2_002.0)
    found.deregister(InstanceName("a", "2"))
    found.register(info("b"), 3_000.0)
    found.expire(20_000.0)
    assert [record.getMessage().split()[1] for record in caplog.records] == [
        "joined", "frozen", "up", "avoided", "up", "draining", "left", "joined", "left", "joined",
        "left",
    ]  # fmt: skip
    causes = [vars(record)["fields"]["cause"] for record in caplog.records]
    assert "restarted" in causes[6] and "deregistered" in causes[8] and "lease" in causes[10]
    assert {vars(record)["fields"]["url"] for record in caplog.records} == {
        "http://a:1", "http://b:1",
    }  # fmt: skip
