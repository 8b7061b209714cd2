"""A fleet whose workers serve several models: who is asked for what."""

import pytest

from protocol.errors import ModelNotFound
from proxy.fleet.fleet import Fleet, NoWorker
from proxy.fleet.fleet_log import mistakes_of
from proxy.fleet.worker import Instance
from proxy.placement.own_view import by_load

TURNS = 6


def serve(worker: Instance, model: str, *names: str) -> None:
    worker.model, worker.models = model, frozenset((model, *names))


@pytest.fixture
def fleet() -> Fleet:
    """Model a with prefill and an adapter at one decode worker, model b without prefill."""
    made = Fleet.from_urls("http://e0,http://e1", "http://p0", "http://d0,http://d1,http://d2")
    serve(made.encode[0], "a")
    serve(made.encode[1], "b")
    serve(made.prefill[0], "a", "alias", "lora")
    serve(made.decode[0], "a", "alias", "lora")
    serve(made.decode[1], "a", "alias")
    serve(made.decode[2], "b")
    made.news()
    return made


@pytest.mark.parametrize(
    ("name", "decoding", "prefilling"),
    [("a", {0, 1}, True), ("alias", {0, 1}, True), ("lora", {0}, True), ("b", {2}, False)],
)
def test_requests_meet_workers_of_their_model(
    name: str, decoding: set[int], prefilling: bool, fleet: Fleet
) -> None:
    plans = [by_load(fleet, 4, (), name) for _ in range(TURNS)]
    assert {plan.decode for plan in plans} == {fleet.decode[i] for i in decoding}
    assert {plan.prefill for plan in plans} == {fleet.prefill[0] if prefilling else None}
    assert fleet.choose("decode", (), name) in {fleet.decode[i] for i in decoding}


def test_encode_workers_list_no_adapters(fleet: Fleet) -> None:
    assert fleet.usable("encode", (), "lora") == [fleet.encode[0]]
    assert fleet.usable("encode", (), "b") == [fleet.encode[1]]


def test_an_adapter_that_prefill_and_decode_have_in_other_files_is_named() -> None:
    fleet = Fleet.from_urls("", "http://p0", "http://d0")
    for worker, revision in ((fleet.prefill[0], "r1"), (fleet.decode[0], "r2")):
        serve(worker, "a", "lora")
        worker.adapters = {"lora": revision}
    fleet.news()
    for role, other in (("decode", "prefill"), ("prefill", "decode")):
        message = fleet.no_worker(role, "lora").message  # type: ignore[arg-type]
        assert (
            message == f"no {role} worker has adapter 'lora' in the files that {other} workers have"
        )


def test_another_model_is_no_replacement(fleet: Fleet) -> None:
    fleet.decode[2].up = False
    with pytest.raises(NoWorker):
        by_load(fleet, 4, (), "b")
    for worker in (*fleet.decode[:2], fleet.prefill[0]):
        worker.up = False
    fleet.decode[2].up = True
    with pytest.raises(NoWorker):
        by_load(fleet, 4, (), "a")


@pytest.mark.parametrize(("name", "said"), [("c", "'c'"), ("", "a, b")])
def test_a_name_that_means_no_model(name: str, said: str, fleet: Fleet) -> None:
    with pytest.raises(ModelNotFound, match=said):
        fleet.models.of(name)
    with pytest.raises(ModelNotFound):
        by_load(fleet, 4, (), name)


def test_one_models_workers_judge_names_themselves() -> None:
    fleet = Fleet.from_urls("", "", "http://d0,http://d1")
    serve(fleet.decode[0], "a")
    fleet.news()
    assert not fleet.models.several and fleet.models.of("c") == ""
    plans = [by_load(fleet, 4, (), "c").decode for _ in range(TURNS)]
    assert set(plans) == set(fleet.decode)


def test_an_own_name_goes_before_anothers_alias(fleet: Fleet) -> None:
    serve(fleet.decode[0], "a", "b")
    fleet.news()
    assert fleet.models.of("b") == "b"


def test_models_that_a_master_tells_of_are_no_mistake(fleet: Fleet) -> None:
    for worker in fleet.all():
        worker.revision = f"weights of {worker.model}"
    assert mistakes_of(fleet), "without a master one request would meet both"
    fleet.watched = True
    assert mistakes_of(fleet) == []
    fleet.decode[0].revision = "others"
    (mistake,) = mistakes_of(fleet)
    assert "http://d0" in mistake or "http://d1" in mistake or "http://p0" in mistake


def test_the_adapter_files_of_workers_that_take_requests_count() -> None:
    fleet = Fleet.from_urls("", "http://p0", "http://d0,http://d1")
    old, new, prefilling = fleet.decode[0], fleet.decode[1], fleet.prefill[0]
    for worker in fleet.all():
        serve(worker, "m", "a")
    old.adapters, new.adapters, prefilling.adapters = {"a": "1"}, {"a": "2"}, {"a": "2"}
    fleet.news()
    assert fleet.usable("decode", (), "a") == [new], "one that all stages have"
    prefilling.adapters, new.up = {"a": "1"}, False
    old.draining, new.up = True, True
    prefilling.up = False
    fleet.news()
    assert fleet.usable("decode", (), "a") == [new], "the other one drains"
    new.up = old.draining = False
    old.up = False
    fleet.news()
    assert "a" in fleet.models.adapters
    with pytest.raises(NoWorker, match="no decode worker is up"):
        fleet.choose("decode", (), "a")
    old.up = prefilling.up = True
    old.adapters, prefilling.adapters = {}, {"a": "2"}
    fleet.news()
    with pytest.raises(NoWorker, match="no decode worker has adapter 'a' in the files"):
        fleet.choose("decode", (), "a")
