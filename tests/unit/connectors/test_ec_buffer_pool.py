"""Memory that embeddings stay in for as long as they are referenced."""

import gc
import threading
from collections.abc import Iterator

import pytest
import torch

from connectors.base import EC_TENSOR, Tensors
from connectors.ec.buffer_pool import BufferPool
from connectors.messages import ECTensor

ROWS, HIDDEN = 4, 64
SIZE = ROWS * HIDDEN * 4
BASE = 512
DESCRIBED = [ECTensor(EC_TENSOR, (ROWS, HIDDEN), "float32", 4096, SIZE)]


class Holder:
    """Something that an error may keep alive in a cycle."""

    def __init__(self, tensors: Tensors) -> None:
        self.tensors = tensors
        self.myself = self


def keep(count: int = 2) -> BufferPool:
    return BufferPool(torch.zeros(count * SIZE, dtype=torch.uint8), BASE)


def lent(keep: BufferPool, seed: int) -> Tensors:
    """An entry that was copied into a piece."""
    offset = keep.take(SIZE)
    assert offset is not None
    keep.fill(offset, values(seed).view(torch.uint8).view(-1))
    return keep.lend(offset, DESCRIBED)


def values(seed: int) -> torch.Tensor:
    return torch.randn(ROWS, HIDDEN, generator=torch.Generator().manual_seed(seed))


def test_pieces_hold_what_was_put_and_come_back_when_no_holder_is_left() -> None:
    pieces = keep()
    first, second = lent(pieces, 1), lent(pieces, 2)
    assert torch.equal(first[EC_TENSOR], values(1)) and torch.equal(second[EC_TENSOR], values(2))
    assert pieces.take(SIZE) is None
    del first
    assert pieces.used == SIZE
    third = lent(pieces, 3)
    assert torch.equal(second[EC_TENSOR], values(2)) and torch.equal(third[EC_TENSOR], values(3))
    del second, third
    assert pieces.used == 0 and pieces.check_integrity() == []


def test_what_is_lent_lies_in_its_own_piece() -> None:
    """Wherever an entry lay at its producer, and in whatever order its tensors are named."""
    pieces = BufferPool(torch.zeros(4 * SIZE, dtype=torch.uint8), BASE)
    first, second = pieces.take(SIZE), pieces.take(2 * SIZE)
    assert first is not None and second is not None
    both = torch.cat([values(1), values(2)]).view(torch.uint8).view(-1)
    pieces.fill(second, both)
    described = [
        ECTensor("deep", (ROWS, HIDDEN), "float32", 4096 + SIZE, SIZE),
        ECTensor(EC_TENSOR, (ROWS, HIDDEN), "float32", 4096, SIZE),
    ]
    found = pieces.lend(second, described)
    assert torch.equal(found[EC_TENSOR], values(1)) and torch.equal(found["deep"], values(2))
    storage = found["deep"].untyped_storage()
    assert storage.nbytes() == 2 * SIZE, "no more than the piece"


def test_a_view_of_a_tensor_keeps_its_piece() -> None:
    pieces = keep(1)
    row = lent(pieces, 1)[EC_TENSOR][2]
    assert pieces.take(SIZE) is None
    assert torch.equal(row, values(1)[2])
    del row
    assert pieces.take(SIZE) == BASE


def test_what_was_not_lent_is_given_back_at_once() -> None:
    pieces = keep(1)
    offset = pieces.take(SIZE)
    assert offset == BASE and pieces.take(1) is None
    pieces.give(offset)
    assert pieces.take(SIZE) == BASE


@pytest.fixture
def no_collection() -> Iterator[None]:
    """But when a test asks for one."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
def test_a_piece_that_garbage_collection_frees_within_take() -> None:
    """The finalizer runs in the middle of the book-keeping."""
    pieces = keep(4)
    for seed in range(3):
        Holder(lent(pieces, seed))
    taking = pieces._space.take

    def interrupted(size: int) -> int | None:
        before = dict(pieces._space._taken)
        gc.collect()
        assert pieces._space._taken == before, "the books change under the call that writes them"
        return taking(size)

    pieces._space.take = interrupted  # type: ignore[method-assign]
    assert pieces.take(SIZE) is not None
    assert pieces.used == SIZE
    assert pieces.check_integrity() == []


@pytest.mark.usefixtures("no_collection")
def test_a_piece_that_another_thread_frees() -> None:
    pieces = keep(1)
    Holder(lent(pieces, 1))
    other = threading.Thread(target=gc.collect)
    other.start()
    other.join()
    assert pieces.take(SIZE) == BASE
    assert pieces.check_integrity() == []
