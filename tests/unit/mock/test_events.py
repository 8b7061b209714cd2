"""Cache events and faults of mock workers: what they say is what is so."""

import random
from collections.abc import Iterable, Sequence

import pytest
import zmq
import zmq.asyncio

from protocol.errors import InvalidRequest
from protocol.event_frames import SNAPSHOT, parse_frames, replay_request
from protocol.keys import BlockKeyChain, block_key, root_key
from protocol.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    CacheEvent,
    EmbeddingRemoved,
    EmbeddingStored,
    decode_event_batch,
    short_key,
)
from protocol.types import EncodeItem, EncodeRequest, MMItem
from services.mock.faults import Faults, parse_faults
from services.mock.publisher import Publisher
from tests.support.mock_runs import Run, asked, engine


def applied(events: Iterable[CacheEvent], start: Iterable[object] = ()) -> set[object]:
    """Names in the cache once all events have come, beginning with those in `start`."""
    known = set(start)
    cleared = False
    for event in events:
        match event:
            case BlockStored():
                parent = event.parent_block_hash
                assert parent is None or parent in known or cleared
                known.update(event.block_hashes)
            case BlockRemoved():
                assert known.issuperset(event.block_hashes)
                known.difference_update(event.block_hashes)
            case AllBlocksCleared():
                known.clear()
                cleared = True
            case EmbeddingStored():
                known.add(event.mm_hash)
            case EmbeddingRemoved():
                known.remove(event.mm_hash)
    return known


def test_events_add_up_to_the_cache() -> None:
    """Through computing, eviction and reset a follower of the events knows what is cached."""
    only = engine(num_blocks=24, block_size=4, events=True, max_num_seqs=3)
    run = Run([only])
    draw = random.Random(1)
    for number in range(60):
        shared = [draw.randrange(3)] * draw.randrange(1, 20)
        run.fleet.add(only, asked(f"r{number}", [*shared, draw.randrange(9)], draw.randrange(1, 8)))
        if number % 20 == 19:
            only.reset_caches(prefix=True)
        run.clock.run(until=run.clock.now + 0.03)
    run.clock.run()
    seen = run.kv_events
    kinds = {type(event) for event in seen}
    assert kinds == {BlockStored, BlockRemoved, AllBlocksCleared}
    assert applied(seen) == {short_key(key) for key in only.blocks.known()} != set()


def test_a_stored_block_says_all_that_its_key_depends_on() -> None:
    """Another process can compute the very same keys from tokens and extra keys."""
    only = engine(block_size=4, events=True)
    item = MMItem("pic", "image", 2, 5)
    prompt = list(range(13))
    run = Run([only])
    run.fleet.add(only, asked("r", prompt, 1, mm_items=[item], cache_salt="s"))
    run.clock.run()
    (stored,) = (event for event in run.kv_events if isinstance(event, BlockStored))
    root = root_key(model="mock", revision="mock", cache_salt="s")
    keys = BlockKeyChain(root, 4, [item]).extend(prompt)
    assert stored.block_hashes == [short_key(key) for key in keys]
    assert stored.extra_keys == [[["pic", 2], "s"], [["pic", -2]], None]
    assert stored.token_ids == prompt[:12] and stored.block_size == 4
    assert keys[1] == block_key(keys[0], prompt[4:8], [("pic", 2)])


async def answers_to(socket: "zmq.asyncio.Socket", start: int) -> list[tuple[int, bytes]]:
    await socket.send_multipart(replay_request(start))
    found = []
    while (message := parse_frames(await socket.recv_multipart())) is not None:
        found.append(message)
    return found


async def test_events_are_published_replayed_and_summed_up() -> None:
    encoder = engine(role="encode", events=True, ec_cache_bytes=4096 * 8)
    context = zmq.asyncio.Context()
    publisher = Publisher(context, "127.0.0.1", blocks=True, embeddings=True)
    kv, ec = publisher.sources
    assert (kv.topic, ec.topic) == ("kv-events", "ec-events")
    subscriber, dealer = context.socket(zmq.SUB), context.socket(zmq.DEALER)
    subscriber.setsockopt(zmq.SUBSCRIBE, b"")
    subscriber.connect(ec.endpoint)
    dealer.connect(ec.replay)
    try:
        await answers_to(dealer, 0)
        for number in range(4):
            item = EncodeItem(f"pic{number}", "image", 4, (), b"x")
            encoder.add_encode(EncodeRequest(f"r{number}", [item]))
            for _ in range(3):
                step = encoder.step()
                publisher.publish(step.kv_events, step.ec_events)
        replayed = await answers_to(dealer, 2)
        (whole,) = await answers_to(dealer, SNAPSHOT)
        assert [sequence for sequence, _ in replayed] == [2, 3] and whole[0] == 3
        assert applied(decode_event_batch(whole[1]).events) == {"pic2", "pic3"}
        live = await received(subscriber, 2)
        assert live[-2:] == replayed
        assert applied(decode_event_batch(replayed[-1][1]).events, {"pic1"}) == {"pic3"}
    finally:
        subscriber.close(linger=0)
        dealer.close(linger=0)
        await publisher.close()
        context.destroy(linger=0)


async def received(subscriber: "zmq.asyncio.Socket", last: int) -> Sequence[tuple[int, bytes]]:
    """Messages up to the sequence number `last` + 1."""
    found: list[tuple[int, bytes]] = []
    while not found or found[-1][0] <= last:
        message = parse_frames(await subscriber.recv_multipart())
        assert message is not None
        found.append(message)
    return found


def test_a_fault_falls_as_often_as_it_was_asked_for() -> None:
    faults = Faults(parse_faults('{"kind": "error", "count": 2}'))
    drawn = [faults.draw("/v1/chat/completions") for _ in range(4)]
    assert [fault is not None for fault in drawn] == [True, True, False, False]
    assert faults.draw("/health") is None


def test_faults_can_be_limited_to_paths_and_drawn_by_lot() -> None:
    rules = '[{"kind": "drop", "paths": ["/health"]}, {"kind": "hang", "probability": 0.3}]'
    draws = []
    for _ in range(2):
        faults = Faults(parse_faults(rules), seed=3)
        draws.append([faults.draw("/v1/completions") is not None for _ in range(200)])
    assert draws[0] == draws[1] and 30 < sum(draws[0]) < 90
    health = Faults(parse_faults(rules)).draw("/health")
    assert health is not None and health.kind == "drop"


def test_what_concerns_the_whole_worker_falls_on_no_answer() -> None:
    faults = Faults(parse_faults('[{"kind": "slow", "factor": 3}, {"kind": "refuse"}]'))
    assert faults.draw("/v1/completions") is None and len(faults.rules) == 2


@pytest.mark.parametrize(
    "text",
    ["", "{", '{"kind": "sing"}', '{"kind": "drop", "count": 0}', '[{"kind": "drop"}, 3]',
     '{"kind": "error", "status": 200}', '{"kind": "drop", "probability": 1.5}', "\xff"],
)  # fmt: skip
def test_rules_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_faults(text)
