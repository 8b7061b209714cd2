"""Pictures that wait to be encoded: how many a run takes, and what becomes of those that find no
room in the store."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from connectors.base import EC_TENSOR, Entry
from connectors.ec.local import LocalEC
from protocol.errors import InternalError
from protocol.types import EncodeItem, EncodeRequest
from services.engine.model.vision import VisionModel
from services.engine.scheduling.decode_delay import RunBound
from services.engine.scheduling.encode_jobs import SeenBefore
from services.engine.scheduling.encode_queue import EncodeQueue
from services.engine.scheduling.image_prefetch import ImagePrefetch, tokens_ahead
from services.engine.scheduling.rates import RateMeter
from tests.conftest import ModelDir, Pass
from tests.support.conversations import asking, picture
from tests.support.engines import request_of

BOUND_S = 30.0
LEASE_S = 600.0


class Case:
    """A queue before a store for `count` pictures."""

    def __init__(self, vision: VisionModel, items: list[EncodeItem], count: int) -> None:
        self.items = items
        self.bytes = items[0].length * self.width(vision) * 4
        self.store = LocalEC(count * self.bytes, BOUND_S, LEASE_S)
        self.patches = vision.prepare(items[0]).patches
        pictures = ImagePrefetch(vision.prepare, tokens_ahead(1 << 20), lambda: None)
        self.queue = EncodeQueue(vision, pictures, self.store, 1 << 20, RateMeter(), time.monotonic)

    @staticmethod
    def width(vision: VisionModel) -> int:
        config: Any = vision.module.config
        return int(config.vision_config.out_hidden_size)

    def add(self, *numbers: int, holder: str = "r") -> None:
        """A request for each picture, all prepared once this returns."""
        for number in numbers:
            item = self.items[number]
            request = EncodeRequest(f"e{number}-{holder}", [item], holder=f"{holder}{number}")
            assert self.queue.add(request) == []
        deadline = time.monotonic() + BOUND_S
        while len(self.queue._runnable()) < len(numbers) and not self.queue.blocked:
            assert time.monotonic() < deadline

    def answered(self) -> list[int]:
        """One step; the pictures whose requests were answered."""
        names = [item.mm_hash for item in self.items]
        outputs = self.queue.step()
        assert not [output.error for output in outputs if output.error]
        return [names.index(output.mm_hash) for output in outputs]

    def close(self) -> None:
        self.queue.close()


@pytest.fixture(scope="module")
def vision(model_dir: ModelDir) -> VisionModel:
    from services.engine.attention.kv_cache import DTYPES

    return VisionModel(model_dir("qwen2_5_vl"), DTYPES["float32"], "cpu", 1 << 24)


@pytest.fixture(scope="module")
def items(model_dir: ModelDir) -> list[EncodeItem]:
    return [item for seed in range(4) for item in encode_items(model_dir("qwen2_5_vl"), seed)]


def encode_items(model: Path, seed: int) -> list[EncodeItem]:
    return request_of(model, asking(picture(900 + seed), "?"), "r")[1].items


@pytest.fixture
def case(vision: VisionModel, items: list[EncodeItem]) -> Iterator[Case]:
    case = Case(vision, items, 4)
    yield case
    case.close()


@pytest.fixture
def tight(vision: VisionModel, items: list[EncodeItem]) -> Iterator[Case]:
    """A store for one picture."""
    case = Case(vision, items, 1)
    yield case
    case.close()


def test_the_first_run_is_one_picture(case: Case) -> None:
    """As the queue does not know yet how long it takes."""
    case.add(0, 1, 2)
    assert case.answered() == [0]
    assert (case.queue.runs, case.queue.encoded) == (1, 1)


def test_a_run_is_no_longer_than_its_first_picture_may_be_held_up(case: Case) -> None:
    case.add(0, 1, 2, 3)
    case.queue.bound.units_per_s = 25.0 * case.patches  # 2.5 pictures in 0.1 s
    assert sorted(case.answered()) == [0, 1]
    case.queue.bound.units_per_s = 1.0
    assert case.answered() == [2], "one at least"


def test_a_run_has_no_more_patches_than_it_may(case: Case) -> None:
    case.queue.bound.units_per_s = 1e9
    case.queue.bound.most = 3 * case.patches
    case.add(0, 1, 2, 3)
    assert sorted(case.answered()) == [0, 1, 2]
    assert case.answered() == [3]


def test_a_rate_rises_at_once_and_falls_slowly() -> None:
    bound = RunBound(1000)
    assert bound.room == 0.0
    bound.learn(500, 0.5)
    assert bound.room == 100.0
    bound.learn(50, 0.5)
    assert bound.room == 55.0
    bound.learn(10**6, 0.0)
    assert bound.room == 1000.0


def test_what_is_kept_stays_and_the_next_one_waits(tight: Case) -> None:
    tight.add(0, 1, 2)
    assert tight.answered() == [0]
    assert tight.answered() == [] and tight.queue.blocked
    assert not tight.queue.runnable, "it does not encode ahead"
    tight.store.release(tight.items[0].mm_hash, None, "r0")
    assert tight.answered() == [1]


def test_what_is_waited_for_is_stored_in_place_of_what_waits(tight: Case) -> None:
    """And comes back when there is room: the request that it was kept for still comes."""
    tight.add(0, 1)
    assert tight.answered() == [0]
    load = tight.store.fetch(tight.items[1].mm_hash, None)
    assert tight.answered() == [1]
    assert load.poll() is not None
    assert tight.queue.blocked, "picture 0 waits to be put again"
    tight.store.release(tight.items[1].mm_hash, None, "r1")
    tight.answered()
    assert not tight.queue.blocked
    assert tight.store.lookup(tight.items[0].mm_hash) is not None
    assert tight.queue.encoded == 2


def test_what_was_pushed_out_is_dropped_once_its_lease_has_lapsed(
    passes: Pass, tight: Case
) -> None:
    """Its request died; another one holds the store all the time."""
    tight.add(0, 1)
    assert tight.answered() == [0]
    load = tight.store.fetch(tight.items[1].mm_hash, None)
    assert tight.answered() == [1] and load.poll() is not None
    passes(LEASE_S - BOUND_S)
    tight.store.find(tight.items[1].mm_hash, "another")
    assert tight.answered() == [] and tight.queue.blocked
    passes(BOUND_S + 1.0)
    assert tight.answered() == [] and not tight.queue.blocked
    assert tight.items[0].mm_hash not in tight.queue
    assert not tight.queue._unstored


def test_what_no_request_asks_for_any_more_is_dropped(tight: Case) -> None:
    tight.add(0, 1)
    tight.queue.bound.units_per_s = 1e9
    assert tight.answered() == [0] and tight.queue.blocked
    tight.queue.abort(["e1-r"])
    tight.answered()
    assert not tight.queue.blocked and len(tight.queue) == 0


def test_a_picture_pushed_out_and_asked_for_again_has_a_new_lease(
    passes: Pass, tight: Case, vision: VisionModel
) -> None:
    name = tight.items[0].mm_hash
    tensors = {EC_TENSOR: torch.zeros(tight.items[0].length, Case.width(vision))}
    now = time.monotonic()
    pushed_out = Entry(tensors, ("r0", "s"), {"r0": now + 0.01, "s": now - 1.0})
    tight.queue._unstored._entries[name] = pushed_out
    tight.queue.add(EncodeRequest("again", [tight.items[0]], holder="r0"))
    assert tight.answered() == [0]
    passes(10.0)
    tight.store.poll()
    assert tight.store.offer("x", Entry(tensors, ())) is None


def test_a_step_that_raises_answers_those_that_it_had_ended_too(
    tight: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is late, one has found room in the store, one waits to be encoded."""
    tight.add(0)
    late = EncodeRequest("late", [tight.items[3]], deadline_s=0.0, holder="late")
    assert tight.answered() == [0]
    tight.add(1)
    assert tight.answered() == [] and tight.queue.blocked
    tight.add(2)
    tight.store.release(tight.items[0].mm_hash, None, "r0")
    assert tight.queue.add(late) == []

    def failing() -> Any:
        raise RuntimeError

    monkeypatch.setattr(tight.queue._pictures, "ready", failing)
    with pytest.raises(RuntimeError):
        tight.queue.step()
    told = tight.queue.fail_all(InternalError("the engine failed"))
    assert sorted(output.request_id for output in told) == ["e1-r", "e2-r", "late"]
    assert len(tight.queue) == 0


@pytest.mark.parametrize(("field", "other"), [("length", 3), ("grid", (1, 2, 6))])
def test_a_picture_of_the_same_name_and_another_size_is_refused(
    tight: Case, field: str, other: Any
) -> None:
    """It would get the embeddings of the first."""
    tight.add(0)
    renamed = msgspec.structs.replace(tight.items[0], **{field: other})
    assert getattr(tight.items[0], field) != other
    (refused,) = tight.queue.add(EncodeRequest("other", [renamed], holder="o"))
    assert refused.error is not None and refused.error.status == 400
    assert refused.error.message.startswith(f"{field}: ")
    assert tight.queue.add(EncodeRequest("same", [tight.items[0]], holder="s")) == []
    assert tight.answered() == [0, 0]


def test_the_earliest_request_says_until_when_a_step_is_due(tight: Case) -> None:
    assert tight.queue.next_deadline is None
    for name, seconds in (("without", None), ("late", 60.0), ("soon", 5.0)):
        item = tight.items[1 if name == "late" else 0]
        tight.queue.add(EncodeRequest(name, [item], holder=name, deadline_s=seconds))
    due = tight.queue.next_deadline
    assert due is not None and 0.0 < due - time.monotonic() <= 5.0
    tight.queue.abort(["soon"])
    due = tight.queue.next_deadline
    assert due is not None and 50.0 < due - time.monotonic() <= 60.0
    tight.queue.abort(["late"])
    assert tight.queue.next_deadline is None and len(tight.queue) == 1


def test_only_the_last_names_are_remembered() -> None:
    seen = SeenBefore(2)
    for name, count in (("a", 0), ("b", 0), ("a", 1), ("c", 1), ("a", 2), ("b", 2), ("c", 2)):
        seen.add(name)
        assert seen.count == count, name
