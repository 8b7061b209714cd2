"""A source whose ring is short: what the follower says it knows is what the source holds."""

import random

import pytest

from protocol.kv_events import AllBlocksCleared, BlockStored
from tests.support.event_sources import Reader, Source, random_event, unanswered


def told(source: Source, *keys: int) -> None:
    for key in keys:
        source.publish(BlockStored([key]))


def test_a_gap_after_a_lost_snapshot_asks_for_a_snapshot_and_not_for_the_ring() -> None:
    source = Source(keep=2, snapshots=True)
    told(source, 1, 2, 3, 4, 5)
    reader = Reader(source, serve=False)
    unanswered(reader)
    reader.follower.live(source.publish(BlockStored([6])))
    reader.serve()
    assert reader.state == source.state == {1, 2, 3, 4, 5, 6}
    assert not reader.follower.incomplete


def test_a_ring_that_was_cut_off_is_not_taken_for_everything() -> None:
    source = Source(keep=2)
    told(source, 1, 2, 3, 4)
    reader = Reader(source)
    assert reader.state == {3, 4}
    assert reader.follower.incomplete
    reader.follower.live(source.publish(BlockStored([5])))
    questions = reader.counts["replays"]
    reader.follower.ask_again()
    reader.serve()
    assert reader.state == {3, 4, 5}, "what it has by now is more than the ring has"
    assert reader.counts["replays"] == questions + 1, "the ring is not asked for again"
    source.snapshots = True
    reader.follower.ask_again()
    reader.serve()
    assert reader.state == source.state
    assert not reader.follower.incomplete


def test_after_a_clear_all_is_known() -> None:
    source = Source(keep=2)
    told(source, 1, 2, 3, 4)
    reader = Reader(source)
    assert reader.follower.incomplete
    reader.follower.live(source.publish(AllBlocksCleared()))
    reader.follower.live(source.publish(BlockStored([9])))
    assert reader.state == {9} and not reader.follower.incomplete


def test_half_a_snapshot_of_the_first_message_is_not_made_whole_by_the_ring() -> None:
    source = Source(snapshots=True)
    source.publish(BlockStored([1, 2, 3]))
    reader = Reader(source, serve=False)
    half = Source(snapshots=True)
    half.publish(BlockStored([1]))
    half.ts = source.ts
    reader.asked.clear()
    reader.follower.replayed(half.answers(-2)[0])
    reader.follower.give_up()
    source.publish(BlockStored([4]))
    source.snapshots = False
    reader.follower.live(source.publish(BlockStored([5])))
    reader.serve()
    assert reader.state == source.state or reader.follower.incomplete


def test_a_source_that_has_said_nothing_is_known() -> None:
    assert not Reader(Source()).follower.incomplete


@pytest.mark.parametrize("snapshots", [False, True])
@pytest.mark.parametrize("keep", [1, 3, 10, 1000])
@pytest.mark.parametrize("seed", range(15))
def test_what_is_known_is_true_and_what_is_said_to_be_whole_is(
    seed: int, keep: int, snapshots: bool
) -> None:
    """Lost messages, lost and half answered questions, restarts."""
    rng = random.Random(f"{seed} {keep} {snapshots}")
    source = Source(keep=keep, snapshots=snapshots)
    reader = Reader(source, serve=rng.random() < 0.5)
    heard, whole = True, 0
    for _ in range(600):
        if rng.random() < 0.01:
            source.restart()
            heard = False
        frames = source.publish(random_event(rng))
        # A restarted publisher whose messages were all lost up to the number that was awaited looks
        # like the one before it; a worker's new generation tells them apart, not its events.
        mistakable = not heard and len(source.sent) - 1 in awaited(reader)
        delivered = rng.random() < 0.8 and not mistakable
        if delivered:
            reader.follower.live(frames)
            heard = True
        answer(reader, rng)
        if reader.follower.incomplete and rng.random() < 0.1:
            reader.follower.ask_again()
        if delivered and not reader.follower.waiting:
            assert reader.state <= source.state
            if not reader.follower.incomplete:
                assert reader.state == source.state
                whole += 1
    assert whole > 20 or (keep == 1 and not snapshots)
    if snapshots:
        settle(reader, source)
        assert not reader.follower.incomplete and reader.state == source.state


def awaited(reader: Reader) -> list[int]:
    """The numbers that would seem to follow what was heard."""
    last = [reader.follower._tracker.last, *(number for number, _ in reader.follower._held)]
    return [number + 1 for number in last]


def answer(reader: Reader, rng: random.Random) -> None:
    """Wholly, in part, or not at all, once in a while."""
    drawn = rng.random()
    if reader.follower.waiting and drawn < 0.1:
        for frames in reader.source.answers(reader.asked.pop())[:-1]:
            if reader.asked or rng.random() < 0.3:
                break
            reader.follower.replayed(frames)
        if reader.follower.waiting:
            reader.asked.clear()
            reader.follower.give_up()
    elif drawn < 0.2 and reader.follower.waiting:
        unanswered(reader)
    elif drawn < 0.8:
        reader.serve()


def settle(reader: Reader, source: Source) -> None:
    for _ in range(3):
        reader.serve()
        reader.follower.live(source.publish(BlockStored([99])))
        reader.serve()
        if reader.follower.incomplete:
            reader.follower.ask_again()
