"""A fleet of a proxy that renders for several models: which workers serve what."""

import pytest

from proxy.fleet.fleet import Fleet, NoWorker, Unreadable, WrongTokenizer
from proxy.fleet.fleet_log import mistakes_of
from proxy.fleet.own_model import OwnModel, OwnModels
from proxy.fleet.served_models import RenderedModels
from proxy.fleet.worker import Instance
from proxy.placement.own_view import Room, by_load

NAMES = [("a", "nice"), ("b",)]
TURNS = 6


def serve(worker: Instance, model: str, *aliases: str, **adapters: str) -> None:
    worker.model, worker.adapters = model, adapters
    worker.models = frozenset((model, *aliases, *adapters))


@pytest.fixture
def fleet() -> Fleet:
    """Model a with prefill, model b without; d1 calls a by another name, and has the alias."""
    made = Fleet.from_urls(
        "http://e0,http://e1", "http://p0", "http://d0,http://d1,http://d2,http://d3",
        own=OwnModels(*map(OwnModel, NAMES)),
    )  # fmt: skip
    serve(made.encode[0], "a")
    serve(made.encode[1], "b")
    serve(made.prefill[0], "a", lora="1")
    serve(made.decode[0], "a", lora="1")
    serve(made.decode[1], "/models/a", "nice", lora="2")
    serve(made.decode[2], "b", other="3")
    serve(made.decode[3], "c", "d")
    made.news()
    return made


@pytest.mark.parametrize(
    ("name", "decoding", "prefilling"),
    [("a", {0, 1}, True), ("nice", {0, 1}, True), ("lora", {0}, True), ("b", {2}, False),
     ("other", {2}, False)],
)  # fmt: skip
def test_requests_meet_workers_of_their_model(
    name: str, decoding: set[int], prefilling: bool, fleet: Fleet
) -> None:
    plans = [by_load(fleet, 4, (), name) for _ in range(TURNS)]
    assert {plan.decode for plan in plans} == {fleet.decode[i] for i in decoding}
    assert {plan.prefill for plan in plans} == {fleet.prefill[0] if prefilling else None}
    assert {plan.model for plan in plans} == {name}


@pytest.mark.parametrize(("name", "encoder"), [("a", 0), ("lora", 0), ("b", 1)])
def test_pictures_go_to_encoders_of_their_model(name: str, encoder: int, fleet: Fleet) -> None:
    found = {fleet.by_content(f"picture {i}", (), name) for i in range(TURNS)}
    assert found == {fleet.encode[encoder]}
    fleet.encode[encoder].up = False
    with pytest.raises(NoWorker):
        fleet.by_content("picture", (), name)


def test_a_model_without_workers_is_not_another_models_load(fleet: Fleet) -> None:
    for worker in (fleet.decode[2], fleet.encode[1]):
        worker.up = False
    with pytest.raises(NoWorker, match="that serves 'b' is up"):
        by_load(fleet, 4, (), "b")
    assert fleet.able(pictures=True, model="a") and not fleet.able(pictures=False, model="b")
    assert fleet.models.several and fleet.models.of("b") == "b"
    assert fleet.models.of("c") == fleet.models.of("") == ""
    with pytest.raises(NoWorker):
        by_load(fleet, 4, (), "c")


def test_another_models_worker_is_no_replacement(fleet: Fleet) -> None:
    assert fleet.replaceable(fleet.decode[0]) and not fleet.replaceable(fleet.decode[2])


def test_adapters_belong_to_the_model_whose_workers_have_them(fleet: Fleet) -> None:
    assert fleet.models.adapters_with("a") == {"lora": "1"}
    assert fleet.models.adapters_with("b") == {"other": "3"}
    # Of two models the first one is meant; a model's own name is no adapter's.
    serve(fleet.decode[2], "b", lora="9", nice="9")
    fleet.news()
    assert fleet.models.adapters_with("a") == {"lora": "1"} and not fleet.models.adapters_with("b")
    assert by_load(fleet, 4, (), "lora").decode is fleet.decode[0]


def test_room_is_that_of_all_models(fleet: Fleet) -> None:
    """Of a model without a decode worker, what its prefill workers have."""
    for worker in (*fleet.decode, *fleet.prefill):
        worker.max_running = 4
    for worker in fleet.decode[:2]:
        worker.up = False
    room = Room(fleet, 0)
    assert (room.requests, room.at_once) == (16, 8), "a's prefill worker and b's decode worker"


def test_the_workers_name_is_told_to_masters(fleet: Fleet) -> None:
    assert isinstance(fleet.models, RenderedModels)
    assert fleet.models.workers_name("a") == "a" and fleet.models.workers_name("lora") == "lora"
    for worker in (*fleet.encode[:1], *fleet.prefill, fleet.decode[0]):
        serve(worker, "/models/a", "nice")
    fleet.news()
    assert fleet.models.workers_name("a") == "/models/a"


def test_models_without_workers_and_workers_without_models_are_named(fleet: Fleet) -> None:
    (foreign,) = mistakes_of(fleet)
    assert "http://d3 serves c" in foreign and "--served-model-name" in foreign
    serve(fleet.decode[3], "a")
    fleet.decode[3].revision, fleet.decode[0].revision = "x", "y"
    for worker in (fleet.decode[2], fleet.encode[1]):
        serve(worker, "a")
    fleet.news()
    unserved, weights = sorted(mistakes_of(fleet), key=lambda text: "weights" in text)
    assert unserved.startswith("no worker serves b") and "http://d" in weights


def test_a_worker_is_compared_with_the_tokenizer_of_its_own_model() -> None:
    own = [OwnModel(names, f"weights-{names[0]}", "", f"tokens-{names[0]}") for names in NAMES]
    fleet = Fleet.from_urls("", "", "http://d0,http://d1,http://d2", own=OwnModels(*own))
    for worker, model, tokenizer in zip(fleet.decode, "abb", "aba", strict=True):
        serve(worker, model, other="1")
        worker.dialect, worker.tokenizer = "tokens", f"tokens-{tokenizer}"
    fleet.news()
    assert [worker.misfit for worker in fleet.decode] == [False, False, True]
    assert by_load(fleet, 4, (), "b").decode is fleet.decode[1]
    (found,) = mistakes_of(fleet)
    assert "--model weights-b (tokens-b)" in found and "http://d2" in found
    fleet.decode[1].up = False
    with pytest.raises(WrongTokenizer, match="that of weights-b, with which") as caught:
        by_load(fleet, 4, (), "b")
    assert caught.value.code == "wrong_tokenizer"
    assert {by_load(fleet, 4, (), name).decode for name in ("a", "nice", "other")} == {
        fleet.decode[0]
    }
    fleet.decode[0].up = False
    with pytest.raises(NoWorker, match="that serves 'a' is up"):
        by_load(fleet, 4, (), "a")


def test_a_model_that_no_worker_serves_is_named_with_what_they_serve(fleet: Fleet) -> None:
    for worker in (fleet.decode[2], fleet.encode[1]):
        serve(worker, "a")
    fleet.news()
    with pytest.raises(NoWorker, match="no worker serves b, but c: see the proxy's --served"):
        by_load(fleet, 4, (), "b")
    fleet.unserved = ("x",)  # as a master tells of workers that are in no list of this proxy's
    with pytest.raises(NoWorker, match="no worker serves b, but x"):
        fleet.by_content("picture", (), "b")
    assert "no worker serves b, but x: see the proxy's --served-model-name" in mistakes_of(fleet)
    assert by_load(fleet, 4, (), "a").decode.rendered == "a"


def test_embeddings_are_read_within_a_model(fleet: Fleet) -> None:
    """Model a's encoder has what only b's workers can read, and the other way round."""
    for worker, kind in zip(fleet.encode, ("shm", "nixl"), strict=True):
        worker.ec_compatibility = kind
    for worker in (*fleet.prefill, *fleet.decode):
        worker.ec_compatibility = "shm" if worker.rendered == "b" else "nixl"
    for name in ("a", "b"):
        with pytest.raises(Unreadable):
            by_load(fleet, 4, (), name, media=True)
        with pytest.raises(Unreadable):
            reader = fleet.usable("decode", (), name)[0].ec_compatibility
            fleet.by_content("picture", (), name, reader)
    found = [text for text in mistakes_of(fleet) if "can read no encode worker's" in text]
    assert len(found) == 2, "of each model"
    assert "http://p0" in found[0] and "http://e0" in found[0] and "http://e1" not in found[0]
    assert "http://d2" in found[1] and "http://e1" in found[1] and "http://e0" not in found[1]
    fleet.encode[0].ec_compatibility, fleet.encode[1].ec_compatibility = "nixl", "shm"
    for name in ("a", "b"):
        assert by_load(fleet, 4, (), name, media=True)
