"""How many pictures are prepared ahead of the vision model, and which."""

import threading
from collections.abc import Iterator

import pytest

from protocol.errors import InvalidRequest
from protocol.types import EncodeItem
from services.engine.scheduling.image_prefetch import ImagePrefetch
from services.engine.scheduling.seams import Prepared
from tests.support.waiting import until

BOUND_S = 30.0


def item(name: str, tokens: int = 10, data: bytes = b"x") -> EncodeItem:
    return EncodeItem(name, "image", tokens, data=data)


def prepare(item: EncodeItem) -> Prepared:
    if not item.data:
        raise InvalidRequest("no picture")
    return Prepared(item, {}, 1)


@pytest.fixture
def preparing() -> Iterator[ImagePrefetch]:
    """Of 25 tokens ahead."""
    preparing = ImagePrefetch(prepare, 25, lambda: None)
    yield preparing
    preparing.close()


def ready(preparing: ImagePrefetch, *names: str) -> None:
    """Wait until these are ready, in this order, and see that no others follow."""
    until(lambda: len(preparing.ready()) >= len(names))
    assert [name for name, _ in preparing.ready()] == list(names)
    assert len(preparing._begun) == len(names)


def test_so_many_are_prepared_ahead(preparing: ImagePrefetch) -> None:
    for name in "abcd":
        preparing.add(item(name))
    preparing.advance(None)
    ready(preparing, "a", "b")
    preparing.discard("a")
    preparing.advance(None)
    ready(preparing, "b", "c")
    preparing.discard("d")
    preparing.discard("b")
    preparing.discard("c")
    preparing.advance(None)
    ready(preparing)


def test_one_is_prepared_however_large_it_is(preparing: ImagePrefetch) -> None:
    preparing.add(item("a", 1000))
    preparing.add(item("b", 1))
    preparing.advance(None)
    ready(preparing, "a")


def test_what_is_waited_for_is_prepared_wherever_it_stands(preparing: ImagePrefetch) -> None:
    for name in "abcdef":
        preparing.add(item(name))
    preparing.advance(lambda name: name in "ef")
    ready(preparing, "a", "b", "e", "f")


def test_what_cannot_be_prepared_is_ready_too_with_its_error(preparing: ImagePrefetch) -> None:
    preparing.add(item("a", data=b""))
    preparing.advance(None)
    ready(preparing, "a")
    assert isinstance(preparing.ready()[0][1], InvalidRequest)


def test_somebody_is_woken_for_each() -> None:
    woken = threading.Semaphore(0)
    preparing = ImagePrefetch(prepare, 25, woken.release)
    preparing.add(item("a"))
    preparing.add(item("b"))
    preparing.advance(None)
    assert woken.acquire(timeout=BOUND_S) and woken.acquire(timeout=BOUND_S)
    preparing.close()
