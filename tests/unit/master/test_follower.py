"""Following event sources: gaps, duplicates, restarts, garbage; other engines' blocks."""

import math
import random

import pytest

from protocol.event_frames import event_frames
from protocol.keys import block_keys, root_key
from protocol.kv_events import BlockHash, BlockRemoved, BlockStored, encode_batch, short_key
from protocol.registry import Load
from protocol.types import MMItem
from services.master.index.foreign_blocks import ForeignBlocks
from tests.support.event_sources import Reader, Source, random_event
from tests.support.master_fleets import add, hear, master


@pytest.mark.parametrize("snapshots", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_lost_doubled_and_reordered_messages_change_nothing(seed: int, snapshots: bool) -> None:
    rng = random.Random(seed)
    source = Source(snapshots=snapshots)
    for _ in range(rng.randrange(20)):
        source.publish(random_event(rng))
    reader = Reader(source)
    late: list[list[bytes]] = []
    for _ in range(200):
        frames = source.publish(random_event(rng))
        fate = rng.random()
        if fate < 0.2:
            late.append(frames)
            continue
        reader.follower.live(frames)
        if fate < 0.3:
            reader.follower.live(frames)
        if late and fate < 0.5:
            reader.follower.live(late.pop(rng.randrange(len(late))))
        reader.serve()
    reader.follower.live(source.publish(BlockStored([99])))
    reader.serve()
    assert reader.state == source.state
    assert reader.counts["duplicate"] > 0
    assert reader.counts["gap"] > 0


def test_messages_that_come_during_a_replay_wait_for_it() -> None:
    source = Source()
    reader = Reader(source)
    for key in range(3):
        reader.follower.live(source.publish(BlockStored([key])))
    source.publish(BlockStored([3]))
    reader.follower.live(source.publish(BlockStored([4])))
    reader.follower.live(source.publish(BlockRemoved([3])))
    assert reader.state == {0, 1, 2}
    reader.serve()
    assert reader.state == {0, 1, 2, 4}


def test_a_gap_during_a_replay_is_filled_by_another() -> None:
    source = Source()
    for key in range(3):
        source.publish(BlockStored([key]))
    reader = Reader(source)
    source.publish(BlockStored([3]))
    reader.follower.live(source.publish(BlockStored([4])))
    first = source.answers(reader.asked.pop())
    source.publish(BlockStored([5]))
    reader.follower.live(source.publish(BlockStored([6])))
    for frames in first:
        reader.follower.replayed(frames)
    asked = list(reader.asked)
    reader.serve()
    assert asked == [4], "what the first replay did not have"
    assert reader.state == source.state
    assert (reader.counts["gap"], reader.counts["lost"]) == (2, 0)


def test_a_gap_older_than_the_replay_buffer_forgets_what_was_known() -> None:
    source = Source(keep=2)
    reader = Reader(source)
    reader.follower.live(source.publish(BlockStored([1])))
    for key in (2, 3, 4, 5):
        source.publish(BlockStored([key]))
    reader.follower.live(source.publish(BlockStored([6])))
    reader.serve()
    assert reader.state == {5, 6}
    assert reader.counts["lost"] == 1


def test_a_gap_older_than_the_replay_buffer_is_filled_by_a_snapshot() -> None:
    source = Source(keep=2, snapshots=True)
    reader = Reader(source)
    reader.follower.live(source.publish(BlockStored([1])))
    for key in (2, 3, 4, 5):
        source.publish(BlockStored([key]))
    reader.follower.live(source.publish(BlockStored([6])))
    reader.follower.live(source.publish(BlockRemoved([2])))
    reader.serve()
    assert reader.state == {1, 3, 4, 5, 6}
    assert (reader.counts["lost"], reader.follower.waiting) == (1, False)
    reader.follower.live(source.publish(BlockStored([7])))
    assert reader.state == source.state


@pytest.mark.parametrize("snapshots", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_short_replay_buffers_cost_knowledge_but_never_truth(seed: int, snapshots: bool) -> None:
    """What a reader holds is held by the source; with snapshots it is all there is."""
    rng = random.Random(seed)
    source = Source(keep=3, snapshots=snapshots)
    reader = Reader(source)
    for _ in range(300):
        frames = source.publish(random_event(rng))
        if rng.random() < 0.7:
            reader.follower.live(frames)
        reader.serve()
    reader.follower.live(source.publish(BlockStored([99])))
    reader.serve()
    assert reader.counts["lost"] > 0
    assert reader.state <= source.state
    assert reader.state == source.state or not snapshots


def test_a_source_without_replay_or_one_that_does_not_answer() -> None:
    source = Source()
    reader = Reader(source, replay=False)
    reader.follower.live(source.publish(BlockStored([1])))
    source.publish(BlockStored([2]))
    reader.follower.live(source.publish(BlockStored([3])))
    assert reader.state == {3}
    silent = Reader(source)
    source.publish(BlockStored([4]))
    silent.follower.live(source.publish(BlockStored([5])))
    assert silent.follower.waiting
    silent.follower.give_up()
    assert silent.state == {5}
    assert silent.counts["replay_timeout"] == 1


def test_a_restarted_publisher_starts_anew() -> None:
    source = Source()
    reader = Reader(source)
    for key in range(5):
        reader.follower.live(source.publish(BlockStored([key])))
    source.restart()
    reader.follower.live(source.publish(BlockStored([50])))
    reader.serve()
    assert reader.state == {50}
    source.restart()
    source.publish(BlockStored([60]))
    source.publish(BlockStored([61]))
    reader.follower.live(source.publish(BlockStored([62])))
    reader.serve()
    assert reader.state == {60, 61, 62}
    assert reader.counts["restart"] == 2, "the second looked like a gap until it was filled"


def test_garbage_is_counted() -> None:
    source = Source()
    reader = Reader(source)
    timeless = event_frames("t", 0, encode_batch(math.nan, [BlockStored([5])]))
    endless = event_frames("t", 0, encode_batch(math.inf, [BlockStored([5])]))
    negative = event_frames("t", -7, encode_batch(1.0, [BlockStored([5])]))
    for frames in (
        [b"x"], [b"t", b"1", b"2"], [b"t", b"\0" * 8, b"\xc1"], timeless, endless, negative
    ):  # fmt: skip
        reader.follower.live(frames)
    assert reader.counts["garbage"] == 6
    reader.follower.live(source.publish(BlockStored([1])))
    assert reader.state == {1}
    source.restart()
    reader.follower.live(source.publish(BlockStored([2])))
    reader.serve()
    assert reader.state == {2}


def test_garbage_in_an_answer_is_counted_and_the_rest_is_taken() -> None:
    source = Source()
    reader = Reader(source)
    for key in (7, 8):
        source.publish(BlockStored([key]))
    reader.follower.live(source.publish(BlockStored([9])))
    reader.follower.replayed([b"no", b"answer"])
    assert reader.counts["garbage"] == 1
    reader.serve()
    assert reader.state == {7, 8, 9}


def foreign_events(tokens: list[int], items: list[MMItem], salt: str = "") -> list[BlockStored]:
    """What a vLLM of block size 4 with hashes of its own would publish, two blocks a time."""
    events = []
    for start in range(0, len(tokens) - 3, 8):
        blocks = range(start, min(start + 8, len(tokens) - 3), 4)
        extra: list[list[object] | None] = []
        for block in blocks:
            own: list[object] = [
                [item.mm_hash, item.offset - block]
                for item in items
                if item.offset < block + 4 and item.end > block
            ]
            extra.append([*own, salt] if salt and block == 0 else own or None)
        events.append(
            BlockStored(
                [b"engine-%d" % block for block in blocks],
                b"engine-%d" % (start - 4) if start else None,
                tokens[start : blocks[-1] + 4],
                4,
                extra_keys=extra,
            )
        )
    return events


@pytest.mark.parametrize("salt", ["", "tenant"])
def test_foreign_blocks_get_our_names_from_tokens_and_media(salt: str) -> None:
    tokens = list(range(100, 126))
    items = [MMItem("a" * 64, "image", 2, 5), MMItem("b" * 64, "image", 13, 9, (1, 6, 6))]
    root = root_key(model="m", revision="r", cache_salt=salt)
    ours = [short_key(key) for key in block_keys(tokens, 4, root, items)]
    blocks = ForeignBlocks("m", "r", 1000)
    named = [key for event in foreign_events(tokens, items, salt) for key in blocks.stored(event)]
    assert named == ours
    assert blocks.unmatched == 0
    assert blocks.removed([b"engine-4", b"unknown"]) == [ours[1]]


def test_foreign_blocks_that_cannot_be_named_are_counted() -> None:
    blocks = ForeignBlocks("m", "r", 3)
    orphan = BlockStored([5], 4, [1, 2], 2)
    short = BlockStored([5], None, [1], 2)
    lora = BlockStored([5], None, [1, 2], 2, lora_name="adapter")
    strange = BlockStored([5], None, [1, 2], 2, extra_keys=[[["m", "x"]]])
    huge = BlockStored([5], None, [1, 2**40], 2)
    for event in (orphan, short, lora, strange, huge):
        assert blocks.stored(event) == []
    assert blocks.unmatched == 5
    many = BlockStored(list(range(5)), None, list(range(10)), 2)
    assert len(blocks.stored(many)) == 3, "bounded"


def test_the_bound_of_foreign_blocks_follows_the_cache_that_is_read_of_a_worker() -> None:
    """One that was added by hand says how large it is only when its metrics are read."""
    made = master(predict_blocks=3)
    add(made, "w", "decode", dialect="openai", load=Load(), foreign=True)
    fleet, slot = made.registry.fleet("m"), made.registry.instances["w"].slot

    def stored(first: int) -> BlockStored:
        names: list[BlockHash] = [*range(first, first + 5)]
        return BlockStored(names, None, list(range(2 * first, 2 * first + 10)), 2)

    hear(made, "w", stored(0))
    assert (fleet.blocks.count(slot), fleet.events.counts.blocks_unmatched) == (3, 2)
    made.registry.observed("w", Load(free_blocks=4, total_blocks=4), 0.0)
    hear(made, "w", stored(10))
    assert (fleet.blocks.count(slot), fleet.events.counts.blocks_unmatched) == (8, 2)
