"""What a source was not heard to say is asked for until it is known."""

import random

import pytest

from protocol.kv_events import BlockRemoved, BlockStored
from tests.support.event_sources import Reader, Source, random_event, unanswered


@pytest.mark.parametrize("snapshots", [False, True])
def test_after_a_lost_replay_everything_is_asked_for_again(snapshots: bool) -> None:
    source = Source(snapshots=snapshots)
    reader = Reader(source)
    for key in range(5):
        reader.follower.live(source.publish(BlockStored([key])))
    source.publish(BlockStored([5]))
    reader.follower.live(source.publish(BlockStored([6])))
    unanswered(reader)
    assert reader.state == {6}, "the blocks that are hot are not said again"
    assert reader.follower.incomplete and not reader.follower.waiting
    reader.follower.ask_again()
    assert not reader.follower.incomplete
    reader.serve()
    assert reader.state == source.state == set(range(7))
    assert not reader.follower.incomplete


@pytest.mark.parametrize("snapshots", [False, True])
def test_a_first_snapshot_that_does_not_come_is_asked_for_again(snapshots: bool) -> None:
    source = Source(snapshots=snapshots)
    for key in range(3):
        source.publish(BlockStored([key]))
    reader = Reader(source, serve=False)
    reader.follower.live(source.publish(BlockStored([3])))
    unanswered(reader)
    assert reader.state == {3}
    reader.follower.ask_again()
    reader.serve()
    assert reader.state == source.state == {0, 1, 2, 3}


@pytest.mark.parametrize("snapshots", [False, True])
def test_while_it_is_asked_again_what_comes_live_counts_and_is_not_lost(snapshots: bool) -> None:
    source = Source(snapshots=snapshots)
    reader = Reader(source)
    for key in range(3):
        reader.follower.live(source.publish(BlockStored([key])))
    source.publish(BlockStored([3]))
    reader.follower.live(source.publish(BlockStored([4])))
    unanswered(reader)
    reader.follower.ask_again()
    answers = source.answers(reader.asked.pop())
    if not snapshots:
        reader.follower.replayed(*answers)
        answers = source.answers(reader.asked.pop())
    reader.follower.live(source.publish(BlockStored([5])))
    reader.follower.live(source.publish(BlockRemoved([1])))
    assert reader.state == {4, 5}, "the reader does not wait for an answer that may not come"
    for frames in answers:
        reader.follower.replayed(frames)
    assert reader.state == source.state == {0, 2, 3, 4, 5}, "the answer was older than these"
    assert not reader.follower.incomplete


def test_a_source_that_never_answers_costs_nothing_that_it_says_live() -> None:
    source = Source()
    reader = Reader(source)
    reader.follower.live(source.publish(BlockStored([0])))
    source.publish(BlockStored([1]))
    reader.follower.live(source.publish(BlockStored([2])))
    unanswered(reader)
    for key in range(3, 6):
        reader.follower.ask_again()
        reader.follower.live(source.publish(BlockStored([key])))
        unanswered(reader)
    assert reader.state == {2, 3, 4, 5}
    assert reader.follower.incomplete
    assert not Reader(Source(), replay=False).follower.incomplete, "there is no replay to ask for"


def test_a_restart_among_held_messages_holds_back_those_after_it() -> None:
    source = Source(snapshots=True)
    reader = Reader(source)
    for key in range(3):
        reader.follower.live(source.publish(BlockStored([key])))
    source.publish(BlockStored([3]))
    reader.follower.live(source.publish(BlockStored([4])))
    answers = source.answers(reader.asked.pop())
    source.restart()
    reader.follower.live(source.publish(BlockStored([50])))
    reader.follower.live(source.publish(BlockStored([51])))
    for frames in answers:
        reader.follower.replayed(frames)
    assert reader.state == set(), "another publisher: nothing is known before it answers"
    source.snapshots = False
    reader.serve()
    assert reader.state == {50, 51}


@pytest.mark.parametrize("snapshots", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_lost_messages_and_lost_replays_end_in_the_truth(seed: int, snapshots: bool) -> None:
    rng = random.Random(seed)
    source = Source(snapshots=snapshots)
    reader = Reader(source)
    for _ in range(300):
        frames = source.publish(random_event(rng))
        if rng.random() < 0.01:
            source.restart()
        if rng.random() < 0.8:
            reader.follower.live(frames)
        if reader.follower.waiting and rng.random() < 0.5:
            reader.asked.clear()
            reader.follower.give_up()
        elif rng.random() < 0.5:
            reader.serve()
        if reader.follower.incomplete and rng.random() < 0.2:
            reader.follower.ask_again()
    reader.serve()
    reader.follower.live(source.publish(BlockStored([99])))
    reader.serve()
    if reader.follower.incomplete:
        reader.follower.ask_again()
        reader.serve()
    assert reader.counts["replay_timeout"] > 5
    assert reader.state == source.state


@pytest.mark.parametrize("snapshots", [False, True])
def test_a_held_message_of_a_process_that_has_ended_is_not_asked_for_without_end(
    snapshots: bool,
) -> None:
    """It has a high number, which the publisher that has taken over will not reach for long."""
    source = Source(snapshots=snapshots)
    reader = Reader(source)
    for key in range(5):
        reader.follower.live(source.publish(BlockStored([key])))
    source.publish(BlockStored([5]))
    reader.follower.live(source.publish(BlockStored([6])))
    source.restart()
    reader.follower.live(source.publish(BlockStored([50])))
    for _ in range(10):
        if reader.asked:
            for frames in source.answers(reader.asked.pop()):
                reader.follower.replayed(frames)
    assert not reader.asked and not reader.follower.waiting
    assert reader.state == {50}
