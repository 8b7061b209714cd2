"""Blocks of a load that is given up are free once nothing writes to them any more, never before."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from connectors.ec.local import LocalEC
from connectors.kv.base import KVArrival, KVLoad
from connectors.kv.local import LocalKV
from protocol.errors import TransferError
from protocol.keys import BlockKeyChain
from protocol.refs import KVRef
from protocol.types import GenerateRequest, SamplingParams
from services.engine.model.embedding_layout import EmbeddingLayout
from services.engine.scheduling.block_manager import BlockManager
from services.engine.scheduling.embedding_cache import EmbeddingCache
from services.engine.scheduling.limits import Limits
from services.engine.scheduling.request import Request, Status
from services.engine.scheduling.scheduler import Scheduler
from services.engine.transfers.kv_fetches import KVFetches

SIZE, BLOCKS = 16, 8
LAYOUT = EmbeddingLayout(1, 0, torch.float32)


class Load(KVLoad):
    """`writing`: a copy is under way, also after it was cancelled. `fed`, `broken`: what `poll`
    finds."""

    def __init__(self) -> None:
        self.writing = self._fed = self.broken = self.cancelled = False
        self.placed: Sequence[int] = ()

    @property
    def fed(self) -> bool:
        return self._fed

    def place(self, first: int, blocks: Sequence[int]) -> None:
        self.placed, self.writing = blocks, True

    def unplace(self) -> None:
        self.placed = ()

    def poll(self) -> KVArrival | None:
        if self.broken:
            raise TransferError("the producer has ended")
        return None

    def cancel(self) -> None:
        self.cancelled = True

    @property
    def settled(self) -> bool:
        return not self.writing


class Connector(LocalKV):
    """Its loads do as the test says: what writes into a pool of real memory cannot be held up."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self.loads: list[Load] = []

    def fetch(self, ref: KVRef, num_blocks: int) -> KVLoad:
        self.loads.append(Load())
        return self.loads[-1]


class Case:
    def __init__(self) -> None:
        embeddings = EmbeddingCache(LocalEC(1 << 16, 30.0, 600.0), 1 << 16, LAYOUT)
        self.blocks = BlockManager(BLOCKS, SIZE)
        self.scheduler = Scheduler(self.blocks, embeddings, Limits(8, 256))
        self.connector = Connector()
        self.fetches = KVFetches(
            self.connector, self.scheduler, vocabulary=100, fail_on_error=False
        )
        self._number = 0

    def fetch(self, blocks: int = 3) -> tuple[Request, Load]:
        """A request whose KV comes from elsewhere, into all blocks that it needs."""
        self._number += 1
        name, prompt = f"r{self._number}", [self._number] * (blocks * SIZE - 1)
        source = GenerateRequest(name, prompt, SamplingParams(max_tokens=1))
        request = Request(
            source, 0, self._number, list(prompt), np.zeros((1, len(prompt)), np.int64), 0,
            BlockKeyChain(b"", SIZE, ()), rank=0,
        )  # fmt: skip
        self.fetches.fetch(request, KVRef(name, "i", tuple(range(blocks)), len(prompt)))
        self.fetches.begin()
        return request, self.connector.loads[-1]

    @property
    def free(self) -> int:
        return self.blocks.num_free

    def check(self) -> None:
        """Every block has one owner."""
        owners = [request.blocks for request in self.scheduler.all_requests()]
        assert self.blocks.check_integrity([*owners, *self.fetches.owned_blocks()]) == []


@pytest.fixture
def case() -> Case:
    return Case()


def test_an_aborted_load_keeps_its_blocks_until_nothing_writes_to_them(case: Case) -> None:
    request, load = case.fetch()
    before = list(load.placed)
    assert len(before) == 3 and case.free == BLOCKS - 3
    case.fetches.abort(request)
    assert load.cancelled and request.status is Status.FINISHED
    assert case.fetches.owned_blocks() == [before] and case.fetches.active
    for _ in range(2):
        assert case.fetches.poll() == []
        assert case.free == BLOCKS - 3
        case.check()
    load.writing = False
    assert case.fetches.poll() == []
    assert case.free == BLOCKS and case.fetches.owned_blocks() == [] and not case.fetches.active
    case.check()


def test_blocks_that_nothing_writes_to_are_free_at_once(case: Case) -> None:
    request, load = case.fetch()
    load.writing = False
    case.fetches.abort(request)
    assert load.cancelled
    assert case.free == BLOCKS and case.fetches.owned_blocks() == [] and not case.fetches.active
    case.check()


def test_one_load_that_settles_frees_its_own_blocks_only(case: Case) -> None:
    (first, one), (second, other) = case.fetch(), case.fetch()
    kept = list(other.placed)
    for request in (first, second):
        case.fetches.abort(request)
    one.writing = False
    case.fetches.poll()
    assert case.fetches.owned_blocks() == [kept] and case.free == BLOCKS - 3
    case.check()


def test_a_load_that_fails_keeps_its_blocks_and_its_request_computes(case: Case) -> None:
    request, load = case.fetch()
    before = list(load.placed)
    load.broken = True
    case.fetches.poll()
    assert case.fetches.owned_blocks() == [before] and case.fetches.failed == 1
    assert request.status is Status.WAITING and not case.fetches.fetching(request)
    (chunk,) = case.scheduler.schedule(lambda request: None, None, lambda request, matched: False)
    assert chunk.request is request and not set(request.blocks) & set(before)
    case.check()


def test_a_load_that_waits_for_its_place_is_given_up_without_blocks(case: Case) -> None:
    placed, _ = case.fetch()
    waiting, load = case.fetch(6)
    assert case.fetches.fetching(waiting) and not load.placed
    case.fetches.abort(waiting)
    assert load.cancelled and not case.fetches.fetching(waiting)
    assert case.fetches.fetching(placed) and case.free == BLOCKS - 3
    case.check()
