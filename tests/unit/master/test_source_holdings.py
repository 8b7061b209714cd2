"""Several event sources of one worker, one for each rank: it holds what any of them holds."""

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.kv_events import (
    AllBlocksCleared,
    AllEmbeddingsCleared,
    BlockRemoved,
    BlockStored,
    CacheEvent,
    EmbeddingRemoved,
    EmbeddingStored,
    EventBatch,
    EventSource,
)
from protocol.registry import InstanceInfo
from services.master.config import MasterConfig
from services.master.fleet.registry import Registry
from services.master.index.prefix_index import HolderIndex
from services.master.index.source_holdings import SourceHoldings

keys = st.lists(st.integers(0, 12), max_size=5)
steps = st.lists(st.tuples(st.sampled_from(["add", "remove", "drop"]), st.integers(0, 2), keys))


@settings(max_examples=100, deadline=None)
@given(steps)
def test_a_worker_holds_what_any_of_its_sources_holds(
    found: list[tuple[str, int, list[int]]],
) -> None:
    index: HolderIndex[int] = HolderIndex(1000)
    index.add(0, [3, 4])
    holdings = SourceHoldings(index, 1)
    model: dict[int, set[int]] = {source: set() for source in range(3)}
    for kind, source, some in found:
        if kind == "add":
            holdings.add(source, some)
            model[source].update(some)
        elif kind == "remove":
            holdings.remove(source, some)
            model[source].difference_update(some)
        else:
            holdings.drop(source)
            model[source].clear()
        held = set().union(*model.values())
        assert set(index.keys(1)) == held and index.count(1) == len(held)
        assert set(index.keys(0)) == {3, 4}, "another worker's"


def ranks(*, foreign: bool) -> Registry:
    """A worker with two ranks."""
    registry = Registry(MasterConfig())
    sources = [EventSource(f"tcp://127.0.0.1:{port}") for port in (1, 2)]
    registry.register(
        InstanceInfo("w", "prefill", "http://w:1", "m", events=sources, foreign=foreign), 0.0
    )
    return registry


def hear(registry: Registry, source: int, *events: CacheEvent) -> None:
    assert registry.apply("w", "", EventBatch(0.0, list(events)), source)


def held(registry: Registry) -> set[int]:
    return set(registry.fleet("m").blocks.keys(0))


def test_what_one_rank_forgets_or_clears_the_other_still_holds() -> None:
    registry = ranks(foreign=False)
    hear(registry, 0, BlockStored([1, 2, 3]), EmbeddingStored("x"))
    hear(registry, 1, BlockStored([3, 4]), EmbeddingStored("x"), EmbeddingStored("y"))
    hear(registry, 0, BlockRemoved([3, 4]))
    assert held(registry) == {1, 2, 3, 4}
    registry.forget_caches("w", "", 0, blocks=True)
    assert held(registry) == {3, 4}
    hear(registry, 0, BlockStored([1]), EmbeddingRemoved("y"), AllEmbeddingsCleared())
    assert set(registry.fleet("m").media.keys(0)) == {"x", "y"}
    hear(registry, 1, AllBlocksCleared())
    assert held(registry) == {1}
    registry.forget_caches("w", "", 1, blocks=False)
    assert len(registry.fleet("m").media) == 0


def test_ranks_of_another_engine_name_their_blocks_each_for_itself() -> None:
    registry = ranks(foreign=True)
    for source in (0, 1):
        hear(registry, source, BlockStored([7, 8], None, [1, 2, 3, 4], 2))
    both = held(registry)
    assert len(both) == 2
    hear(registry, 0, BlockRemoved([8]))
    assert held(registry) == both
    hear(registry, 1, AllBlocksCleared())
    assert len(held(registry)) == 1
    hear(registry, 0, BlockStored([9], 7, [3, 4], 2))
    assert held(registry) == both, "the parent was not forgotten with the other rank's"
