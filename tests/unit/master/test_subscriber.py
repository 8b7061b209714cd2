"""Event sources over real sockets: bounded rounds of the loop, and no message or missing resource
that ends the reading."""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

from protocol.event_frames import end_frames, event_frames
from protocol.kv_events import BlockStored, EventBatch, encode_batch
from protocol.registry import InstanceName
from services.master.events import subscriber, subscription, zmq_reader
from services.master.fleet.registry import Registry
from tests.support.event_publishers import Follower, Publisher
from tests.support.waiting import eventually

WAIT_S = 10.0


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    context: zmq.Context[Any] = zmq.Context()
    yield Publisher(context)
    context.destroy(0)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription, "_REPLAY_TIMEOUT_S", 0.05)
    monkeypatch.setattr(subscriber, "_RETRY_S", 0.05)


async def serving_until(publisher: Publisher, done: Callable[[], bool]) -> None:
    """Each question is answered: the hasty ask again where an answer is late."""
    async with asyncio.timeout(WAIT_S):
        while not done():
            if publisher.router.poll(0):
                await publisher.serve()
            await asyncio.sleep(0.005)


async def following(publisher: Publisher) -> Follower:
    """A follower whose subscription has arrived and whose first questions are answered."""
    follower = Follower(publisher.source)
    await publisher.serve()
    await publisher.serve()
    await eventually(lambda: not follower.subscriber._open["w"][0].follower.waiting)
    deadline = time.monotonic() + WAIT_S
    while not follower.keys:
        assert time.monotonic() < deadline
        publisher.publish(0)
        await asyncio.sleep(0.01)
        if publisher.router.poll(0):
            await publisher.serve()
    return follower


async def test_after_lost_replays_a_source_is_asked_until_it_answers(
    publisher: Publisher, hasty: None
) -> None:
    follower = await following(publisher)
    publisher.publish(1)
    await eventually(lambda: 1 in follower.keys)
    publisher.publish(2, lose=True)
    publisher.publish(3)
    while follower.counts["replay_timeout"] < 2 or follower.keys != {3}:
        await publisher.asked()
    publisher.publish(4)
    await eventually(lambda: 4 in follower.keys)
    await serving_until(
        publisher,
        lambda: follower.keys == {0, 1, 2, 3, 4} and not follower.subscriber.incomplete,
    )
    questions = follower.counts["replays"]
    publisher.publish(5)
    await eventually(lambda: 5 in follower.keys)
    assert follower.counts["replays"] == questions, "nothing is missing any more"
    follower.subscriber.close()


async def test_a_master_may_follow_no_events(publisher: Publisher) -> None:
    follower = Follower(publisher.source, follow_events=False)
    assert not follower.subscriber._open


async def test_a_busy_master_takes_in_all_that_another_engine_replays(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's socket keeps 1,000 messages and drops the rest; here it waits and fails instead."""
    monkeypatch.setattr(subscription, "_REPLAY_TIMEOUT_S", 60.0)
    publisher.router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    publisher.router.setsockopt(zmq.SNDTIMEO, 20_000)
    follower = Follower(publisher.source, foreign=True)
    await publisher.serve()
    client, start = await publisher.asked()
    assert start == 0
    for sequence in range(4_000):  # more than TCP's buffers hold beside the socket's
        stored = encode_batch(time.time(), [BlockStored([sequence.to_bytes(10_000, "big")])])
        publisher.router.send_multipart([client, b"", *event_frames("", sequence, stored)])
    publisher.router.send_multipart([client, b"", *end_frames()])
    await eventually(lambda: not follower.subscriber.incomplete)
    assert follower.master.registry.fleet("m").events.counts.blocks_stored == 4_000
    follower.subscriber.close()


def crowded(most: int, taken: int) -> tuple[zmq.Context[Any], list[zmq.Socket[bytes]]]:
    """A context of `most` sockets, and those of them that are `taken`."""
    context: zmq.Context[Any] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, most)
    return context, [context.socket(zmq.PAIR) for _ in range(taken)]


async def followed(publisher: Publisher, follower: Follower) -> None:
    """Until what the publisher holds is known."""
    publisher.keys, publisher.sequence = [1, 2], 7
    await serving_until(
        publisher, lambda: follower.keys == {1, 2} and not follower.subscriber.incomplete
    )
    follower.subscriber.close()


async def test_a_question_for_which_there_is_no_socket_is_asked_later(
    publisher: Publisher, hasty: None
) -> None:
    context, (placeholder,) = crowded(2, 1)
    follower = Follower(publisher.source, context)
    assert follower.counts["bad_endpoint"] == 1, "too many open files"
    placeholder.close(0)
    await followed(publisher, follower)


async def test_a_source_for_which_there_is_no_socket_is_followed_later(
    publisher: Publisher, hasty: None
) -> None:
    context, placeholders = crowded(2, 2)
    follower = Follower(publisher.source, context)
    assert (follower.counts["bad_endpoint"], follower.subscriber.incomplete) == (1, 1)
    await eventually(lambda: follower.counts["bad_endpoint"] == 2)
    for placeholder in placeholders:
        placeholder.close(0)
    await followed(publisher, follower)


async def test_a_source_without_a_socket_is_forgotten_with_its_worker(
    publisher: Publisher, hasty: None
) -> None:
    context, (placeholder,) = crowded(1, 1)
    follower = Follower(publisher.source, context)
    (timer,) = follower.subscriber._missed["w"].values()
    follower.master.deregister(InstanceName("w"), time.monotonic())
    assert timer.cancelled() and follower.subscriber.incomplete == 0
    placeholder.close(0)
    follower.subscriber.close()


async def test_messages_that_no_reader_expects_do_not_end_the_reading(
    publisher: Publisher, hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = await following(publisher)
    publisher.send(b"\x92\xcb" + bytes(8) + b"\x91" * 200_000 + b"\x01")
    publisher.send(b"\x91" * 200_000)
    publisher.sequence -= 2
    publisher.publish(1)
    await eventually(lambda: 1 in follower.keys)
    assert follower.counts["garbage"] == 2
    apply = Registry.apply

    def fails_for_13(
        self: Registry, name: str, generation: str, batch: EventBatch, source: int = 0
    ) -> bool:
        if any(getattr(event, "block_hashes", None) == [13] for event in batch.events):
            raise OverflowError("int too large")
        return apply(self, name, generation, batch, source)

    monkeypatch.setattr(Registry, "apply", fails_for_13)
    publisher.publish(13)
    publisher.publish(14)
    await eventually(lambda: 14 in follower.keys)
    assert follower.counts["failed"] == 1
    publisher.keys.remove(13)
    publisher.keys.append(15)
    await serving_until(publisher, lambda: 15 in follower.keys)
    follower.subscriber.close()


async def test_a_turn_of_the_loop_is_bounded_over_all_sockets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Messages that each take the whole time of a turn come one in each turn, from each socket in
    its order."""
    monkeypatch.setattr(zmq_reader, "_TURN_S", 0.0)
    context: zmq.Context[Any] = zmq.Context()
    all_rounds, taken, turn = zmq_reader.ReadRounds(), list[tuple[int, int]](), 0
    readers = []
    for number in range(3):
        push, pull = context.socket(zmq.PUSH), context.socket(zmq.PULL)
        port = push.bind_to_random_port("tcp://127.0.0.1")
        pull.connect(f"tcp://127.0.0.1:{port}")
        for _ in range(50):
            push.send(b"x")
        await eventually(lambda at=pull: bool(at.poll(0)))
        readers.append((number, pull))

    def take(number: int) -> Callable[[list[bytes]], None]:
        return lambda frames: taken.append((turn, number))

    opened = [zmq_reader.SocketReader(pull, take(number), all_rounds) for number, pull in readers]
    async with asyncio.timeout(20):
        while len(taken) < 150:
            await asyncio.sleep(0)
            turn += 1
    assert len(taken) == 150
    assert len({at for at, _ in taken}) == 150, "no two in one turn"
    assert {number for _, number in taken[:6]} == {0, 1, 2}, "no worker waits for another's backlog"
    for reader in opened:
        reader.close()
        reader.close()
    context.destroy(0)
