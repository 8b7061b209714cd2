"""Encoders that do not say what they hold: their caches' size is learnt from how long they take."""

import random
from collections import OrderedDict

import pytest

from protocol.placement import Finished, ScheduleRequest
from services.master.index.predicted_cache import PredictedCache
from services.master.index.prefix_index import HolderIndex
from tests.support.master_fleets import asking, master, picture, place, prefill_of, sources

ENCODE_S, HIT_S = 0.3, 0.005
PICTURES = 200


def guessing(name: str, item: str) -> ScheduleRequest:
    return asking(name, predicted=True, blocks=0, items=[picture(item)])


class Encoders:
    """Each with room for so many pictures, the least recently used one goes."""

    def __init__(self, room: int, count: int) -> None:
        self.room = room
        self.held: dict[str, OrderedDict[str, None]] = {
            f"e{number}": OrderedDict() for number in range(count)
        }

    def encode(self, at: str, item: str) -> bool:
        """Whether it was there."""
        held = self.held[at]
        there = item in held
        held[item] = None
        held.move_to_end(item)
        if len(held) > self.room:
            held.popitem(last=False)
        return there


def wrong_guesses(room: int, requests: int, seed: int) -> list[bool]:
    """Of pictures drawn by Zipf's law, one request after the other: for each that was thought to be
    there, whether it was not."""
    made, encoders = master("encode", "encode", "prefill", "decode"), Encoders(room, 2)
    rng = random.Random(seed)
    weights = [1.0 / (rank + 1) for rank in range(PICTURES)]
    now, wrong = 1.0, []
    for number, drawn in enumerate(rng.choices(range(PICTURES), weights, k=requests)):
        item, name = f"p{drawn}", f"r{number}"
        ((how, at),) = sources(place(made, guessing(name, item), now))
        there = encoders.encode(at, item)
        if how == "cached":
            wrong.append(not there)
        elapsed = HIT_S if there else ENCODE_S
        now += elapsed
        made.finished(Finished(name, "encode", [item], elapsed_s=elapsed), now)
        made.finished(Finished(name), now)
        now += 0.01
    return wrong


@pytest.mark.parametrize("room", [15, 40])
def test_few_pictures_are_looked_for_where_they_are_no_more(room: int) -> None:
    wrong = wrong_guesses(room, 1800, 3)
    late = wrong[len(wrong) // 2 :]
    assert len(late) > 200, "repeated pictures still go where they are"
    assert sum(late) < 0.05 * len(late), "not one in twenty, with no word from the encoders"


def test_a_cache_with_room_for_all_is_believed_to_have_it() -> None:
    assert not any(wrong_guesses(PICTURES, 1000, 4))


def cache(limit: int) -> PredictedCache[str]:
    index: HolderIndex[str] = HolderIndex(1000)
    return PredictedCache(index, 0, 60_000.0, limit)


def test_a_miss_of_what_was_used_just_now_says_nothing_of_the_size() -> None:
    made = cache(100)
    for number in range(50):
        made.use([f"p{number}"], float(number))
    made.missed("p49")
    made.missed("never seen")
    assert len(made) == 50
    made.missed("p0")
    assert len(made) == 47


def test_room_is_found_again_up_to_the_limit() -> None:
    made = cache(100)
    for number in range(100):
        made.use([f"p{number}"], float(number))
    made.missed("p0")
    assert len(made) == 95
    for _ in range(1000):
        made.found()
    for number in range(200, 350):
        made.use([f"p{number}"], float(number))
    assert len(made) == 100


def test_no_miss_empties_it() -> None:
    made = cache(10)
    made.use(["a"], 1.0)
    for _ in range(100):
        made.missed("a")
        made.use(["a"], 1.0)
    assert len(made) == 1


def test_a_slow_encode_makes_no_idle_worker_busy() -> None:
    """Longer than --busy-queue-ms: who waits for that encode has nothing to do meanwhile."""
    made = master("encode", "prefill", "decode", busy_queue_ms=20.0)  # 32 tokens take 32 ms
    placed = place(made, guessing("r", "a"))
    assert sources(placed) == [("encode", "e0")] and prefill_of(placed) == "p1"
