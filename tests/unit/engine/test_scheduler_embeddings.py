"""A request runs once its pictures are there, and the scheduler keeps them while it needs them."""

from collections.abc import Sequence

import pytest
import torch

from connectors.base import EC_TENSOR, Entry
from protocol.types import MMItem
from services.engine.scheduling.choices import SiblingChoices
from services.engine.scheduling.limits import Limits
from services.engine.scheduling.live_requests import LiveRequests
from services.engine.scheduling.request import Request
from tests.support.scheduler_cases import Case, prompts


def test_a_late_picture_of_an_old_request_holds_up_no_other() -> None:
    """Its prompt takes 13 steps and more, in each of which all others get their token."""
    case = Case(Limits(64, 256))
    picture = MMItem("picture", "image", 8, 13 * 256)
    old = case.add(8 + picture.length + 8, 1000, picture)
    others = [case.add(8) for _ in range(32)]
    case.step()
    case.step()
    assert old.num_computed == 8 and all(request.num_left == 1 for request in others)
    case.store_picture(picture)
    steps = 0
    while not old.num_output:
        chunks = case.step()
        assert {c.request for c in chunks if c.decodes} == set(others)
        assert 0 < prompts(chunks) <= 256 - 32
        steps += 1
    assert steps == -(-(picture.length + 8) // (256 - 32))
    case.check()


def test_a_picture_that_must_be_whole_is_computed_beside_those_who_decode() -> None:
    """Even where it is longer than prompts may take of such a step."""
    case = Case(Limits(8, 64, whole_media=True, max_prefill_beside_decode=16))
    others = [case.add(2) for _ in range(7)]
    case.step()
    picture = MMItem("picture", "image", 20, 56)
    case.store_picture(picture)
    old = case.add(90, 1, picture, priority=-1)
    computed = []
    while old.num_output == 0:
        chunks = case.step()
        assert {c.request for c in chunks} >= set(others)
        computed += [(c.start, c.count) for c in chunks if c.request is old]
    assert computed == [(0, 16), (16, 4), (20, 56), (76, 14)]


@pytest.mark.parametrize(("running", "blocks"), [(3, 64), (5, 6)], ids=["slots", "blocks"])
def test_who_waits_for_embeddings_makes_way_for_the_request_that_has_them(
    running: int, blocks: int
) -> None:
    """The oldest waits for KV from a tier; meanwhile others take each slot or block, up to their
    pictures, for which there is no room: the oldest has reserved all of it."""
    case = Case(Limits(running, 128), blocks, embedding_tokens=16)
    pictures = [MMItem(f"picture {i}", "image", 16, 16) for i in range(7)]
    oldest = case.add(48, 4, pictures[0])
    case.awaiting[oldest.key] = 3
    others = [case.add(48, 4, picture) for picture in pictures[1:]]
    for picture in pictures:
        case.store_picture(picture)
    for _ in range(3):
        case.step()
    full = not case.scheduler.has_room() or not case.scheduler.blocks.can_allocate(4)
    assert oldest in case.scheduler.waiting and full
    case.step()
    assert case.scheduler.running[-1] is oldest
    for _ in range(60):
        case.step()
        case.check()
    assert all(request.num_output == 4 for request in [oldest, *others])


def test_a_request_whose_picture_is_not_there_is_passed_by_cheaply(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Case(Limits(4, 64))
    item = MMItem("ab" * 32, "image", 0, 20)
    request = case.add(40, 3, item)
    case.add(8, 200)
    matched: list[int] = []
    match = case.scheduler.blocks.match

    def counting(keys: Sequence[bytes]) -> list[int]:
        matched.append(len(keys))
        return match(keys)

    monkeypatch.setattr(case.scheduler.blocks, "match", counting)
    for _ in range(100):
        case.step()
    assert len(matched) <= 2 + 100 // 64 + 1
    assert request.num_computed == 0
    case.store_picture(item)
    case.step()
    assert request.num_computed == 40
    case.check()


def test_a_request_that_starts_again_asks_for_its_picture_again() -> None:
    case = Case(Limits(4, 64))
    item = MMItem("ab" * 32, "image", 0, 20)
    request = case.add(40, 50, item)
    case.step()
    assert request.awaits_item == item
    case.store_picture(item)
    for _ in range(3):
        case.step()
    assert request.num_output == 3
    case.scheduler.embeddings.clear()
    case.scheduler.blocks.reset_prefix_cache()
    case.scheduler.preempt(request)
    for _ in range(60):
        case.step()
    assert request.num_output == 50
    case.check()


def know_prefix(case: Case, request: Request, count: int) -> None:
    """The first blocks of a request's prompt are computed, by another one."""
    blocks = case.scheduler.blocks.allocate(count)
    assert blocks is not None
    for block, key in zip(blocks, request.keys.extend(request.tokens)[:count], strict=True):
        case.scheduler.blocks.store(block, key)
    case.scheduler.blocks.release(blocks)


def test_pictures_of_the_known_part_take_no_room_from_those_that_are_needed() -> None:
    case = Case(Limits(4, 64), embedding_tokens=30)
    known, needed = MMItem("ab" * 32, "image", 0, 20), MMItem("cd" * 32, "image", 32, 20)
    case.store_picture(known)
    request = case.add(60, 2, known, needed)
    case.scheduler.embeddings.poll()  # room is reserved for the first
    know_prefix(case, request, 2)
    for _ in range(3):
        case.step()
    case.store_picture(needed)
    for _ in range(3):
        case.step()
    assert request.num_output == 2
    case.check()


def test_a_prompt_that_is_found_later_needs_no_picture() -> None:
    case = Case(Limits(4, 64))
    item = MMItem("ab" * 32, "image", 0, 20)
    waiting = case.add(40, 2, item)
    case.step()
    know_prefix(case, waiting, 2)
    for _ in range(70):
        case.step()
    assert waiting.num_output == 2
    case.check()


def test_a_request_has_its_embeddings_once_it_may_use_those_of_another() -> None:
    """The third may not while the second, which is older, finds no room for its own."""
    case = Case(Limits(64, 256), embedding_tokens=10)
    shared, large = MMItem("shared", "image", 0, 6), MMItem("large", "image", 0, 8)
    first, second, third = (case.add(8, 1, item) for item in (shared, large, shared))
    embeddings = case.scheduler.embeddings
    assert embeddings.poll() == [] and embeddings.take_completed() == []
    case.store_picture(shared)
    assert embeddings.poll() == [] and embeddings.take_completed() == [first]
    case.scheduler.finish(second)
    assert embeddings.poll() == [] and embeddings.take_completed() == [third]


def lengths_of(case: Case) -> list[tuple[str, str]]:
    """(request, code) of those that fail at the next look at embeddings."""
    return [(key[0], error.code) for key, error in case.scheduler.embeddings.poll()]


@pytest.mark.parametrize("early", [True, False], ids=["on its way", "here"])
def test_an_embedding_of_another_length_is_not_used(early: bool) -> None:
    """Two requests name one picture, of which the second says it had more embeddings."""
    case = Case(Limits(64, 256))
    first = case.add(20, 1, MMItem("picture", "image", 0, 6))
    longer = MMItem("picture", "image", 0, 9)
    if early:
        case.add(20, 1, longer)
        assert lengths_of(case) == []
    case.store_picture(first.mm_items[0])
    if not early:
        assert lengths_of(case) == []
        case.add(20, 1, longer)
    found = [*lengths_of(case), *lengths_of(case)]
    assert set(found) == {("r2", "embedding_length_mismatch")}
    chunks = case.scheduler.schedule(lambda request: None)
    assert [chunk.request for chunk in chunks] == [first]


def test_who_expects_the_right_length_does_not_fail_with_another() -> None:
    """The request that came first is wrong about the length: the second asks anew."""
    case = Case(Limits(64, 256))
    case.add(20, 1, MMItem("picture", "image", 0, 6))
    right = case.add(20, 1, MMItem("picture", "image", 0, 9))
    other = case.add(20, 1, MMItem("other", "image", 0, 3))
    for picture in (right.mm_items[0], other.mm_items[0]):
        case.store_picture(picture)
    assert lengths_of(case) == [("r1", "embedding_length_mismatch")]
    case.scheduler.finish(case.scheduler.waiting[0])
    assert case.scheduler.embeddings.take_completed() == [other], "none waits for it"
    assert lengths_of(case) == []
    assert case.scheduler.embeddings.take_completed() == [right]


def test_a_request_that_names_a_picture_with_two_lengths_fails() -> None:
    case = Case(Limits(64, 256))
    items = MMItem("picture", "image", 0, 6), MMItem("picture", "image", 8, 9)
    case.add(20, 1, *items)
    case.store_picture(items[0])
    assert [*lengths_of(case), *lengths_of(case)] == [("r1", "embedding_length_mismatch")]


def test_choices_that_come_to_life_keep_the_embeddings_of_the_last_block() -> None:
    """Each computes what is behind the last full block of the prompt again. Until then neither the
    engine nor the producer lets go of a picture there, and of no other."""
    case = Case(Limits(4, 64), embedding_tokens=6)
    first, last = MMItem("first", "image", 0, 6), MMItem("last", "image", 12, 6)
    other = MMItem("other", "image", 0, 6)
    for item, holder in ((first, "r1"), (last, "r1"), (other, "r2")):
        tensors = {EC_TENSOR: torch.zeros(item.length, 1)}
        case.store.offer(item.mm_hash, Entry(tensors, (holder,)))
    request = case.add(20, 3, first, last, n=2)
    request.siblings = (1,)
    choices = SiblingChoices(LiveRequests(), case.scheduler)
    late = case.add(20, 1, other)
    embeddings, held = case.scheduler.embeddings, case.store._holders.holds
    while request.num_computed < request.num_prompt:
        assert embeddings.poll() == []
        for chunk in map(choices.with_siblings, case.scheduler.schedule(lambda request: None)):
            case.scheduler.computed(chunk.request, chunk.end)
    request.tokens.append(1)
    assert held("last"), "the producer keeps it"
    assert embeddings.poll() == []
    assert embeddings.ready(last) and not embeddings.ready(other), "it was not pushed out"
    while late.num_output == 0:
        case.step()
    assert embeddings.stolen == 0 and not held("first") and not held("last")
    case.check()
