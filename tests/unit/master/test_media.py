"""Where pictures come from: caches, encodes under way, encoders."""

import msgspec
import pytest

from protocol.errors import Unavailable
from protocol.kv_events import BlockStored, EmbeddingStored
from protocol.placement import Finished, MediaNeed
from protocol.registry import Drain, InstanceName
from services.master.master import Master
from tests.support.master_fleets import (
    LOAD,
    PROMPT,
    RATES,
    add,
    asking,
    hear,
    master,
    picture,
    place,
    prefill_of,
    sources,
)


def test_a_new_picture_is_encoded_once_and_joined() -> None:
    made = master("encode", "encode", "prefill", "decode")
    first = place(made, asking("a", items=[picture("x")]))
    ((state, encoder),) = sources(first)
    assert state == "encode"
    assert sources(place(made, asking("b", blocks=0, items=[picture("x")]))) == [
        ("pending", encoder)
    ]
    hear(made, encoder, EmbeddingStored("x"))
    assert sources(place(made, asking("c", blocks=0, items=[picture("x")]))) == [
        ("cached", encoder)
    ]
    assert made.registry.fleet("m").pending == {}


def test_an_encode_that_failed_is_not_joined() -> None:
    made = master("encode", "prefill", "decode")
    place(made, asking("a", items=[picture("x")]))
    made.finished(Finished("a", "encode", ["x"], failed=["e0"]), 0.1)
    assert sources(place(made, asking("b", blocks=0, items=[picture("x")]), 0.1)) == [
        ("encode", "e0")
    ]


def test_an_encode_that_is_long_overdue_is_not_joined() -> None:
    made = master("encode", "prefill", "decode")
    place(made, asking("a", items=[picture("x")]))
    expires_s = made.registry.fleet("m").pending["x"].expires_at / 1000
    before, after = expires_s - 0.001, expires_s + 0.001
    joined = place(made, asking("b", blocks=0, items=[picture("x")]), before)
    assert sources(joined) == [("pending", "e0")]
    again = place(made, asking("c", blocks=0, items=[picture("x")]), after)
    assert sources(again) == [("encode", "e0")]


def test_an_encoder_that_leaves_takes_its_pending_pictures_along() -> None:
    made = master("encode", "prefill", "decode")
    place(made, asking("a", items=[picture("x")]))
    made.deregister(InstanceName("e0"), 0.0)
    add(made, "e9", "encode")
    assert sources(place(made, asking("b", blocks=0, items=[picture("x")]))) == [("encode", "e9")]


def test_several_pictures_spread_over_encoders() -> None:
    made = master(*["encode"] * 4, "prefill", "decode")
    items = [picture(f"x{i}", 32 * i) for i in range(4)]
    placed = sources(place(made, asking("a", blocks=0, items=items)))
    assert {state for state, _ in placed} == {"encode"}
    assert len({encoder for _, encoder in placed}) == 4


def test_the_same_picture_twice_in_a_prompt_is_encoded_once() -> None:
    made = master("encode", "encode", "prefill", "decode")
    items = [picture("x"), picture("x", 64)]
    first, second = sources(place(made, asking("a", blocks=0, items=items)))
    assert first[0] == "encode"
    assert second == ("pending", first[1])


def test_a_picture_inside_a_cached_prefix_needs_no_encoder() -> None:
    made = master("encode", "prefill", "decode")
    hear(made, "p1", BlockStored(list(PROMPT[:4])))
    inside, after = picture("x", 16, 48), picture("y", 70, 32)
    placed = sources(place(made, asking("a", items=[inside, after])))
    assert placed == [("prefix", ""), ("encode", "e0")]


def test_the_prefill_worker_that_holds_a_picture_is_preferred() -> None:
    made = master("encode", *["prefill"] * 4, "decode")
    hear(made, "p3", EmbeddingStored("x"))
    placement = place(made, asking("a", blocks=0, items=[picture("x", tokens=150)]))
    assert prefill_of(placement) == "p3"
    assert sources(placement) == [("cached", "p3")]


def test_a_drained_encoder_still_hands_out_what_it_holds() -> None:
    made = master("encode", "encode", "prefill", "decode")
    hear(made, "e0", EmbeddingStored("x"))
    made.drain(Drain("e0"), 0.0)
    items = [picture("x"), picture("y", 64)]
    assert sources(place(made, asking("a", blocks=0, items=items))) == [
        ("cached", "e0"), ("encode", "e1"),
    ]  # fmt: skip


def test_a_hot_picture_gets_a_second_copy_when_its_owner_sends_without_end() -> None:
    made = master("encode", "encode", "prefill", "decode", busy_queue_ms=0)
    hear(made, "e0", EmbeddingStored("x"))
    hot = MediaNeed("x", 32, 0, size_bytes=20_000_000)
    placed = [sources(place(made, asking(f"r{i}", blocks=0, items=[hot])))[0] for i in range(6)]
    assert placed[0] == ("cached", "e0")
    assert ("encode", "e1") in placed


def test_a_store_serves_pictures_and_runs_nothing() -> None:
    made = master("store", "encode", "prefill", "decode")
    hear(made, "s0", EmbeddingStored("x"))
    assert sources(place(made, asking("a", items=[picture("x")]))) == [("cached", "s0")]


def test_without_encoders_the_worker_encodes_itself() -> None:
    made = master("pdfusion")
    placement = place(made, asking("a", items=[picture("x")]))
    assert (placement.prefill, sources(placement)) == (None, [("local", "")])


def test_encoders_that_are_all_down_are_an_error_and_count_nothing() -> None:
    made = master("encode", "prefill", "decode")
    made.drain(Drain("e0"), 0.0)
    with pytest.raises(Unavailable):
        made.schedule(asking("a", items=[picture("x")]), 0.0)
    assert float(made.registry.fleet("m").pools["prefill"].requests.sum()) == 0.0


def test_a_store_without_encoders_serves_what_it_holds() -> None:
    made = master("store", "prefill", "decode")
    hear(made, "s0", EmbeddingStored("x"))
    large = MediaNeed("x", 32, 0, size_bytes=50_000_000)  # dearer to fetch than a tie
    placed = sources(place(made, asking("a", blocks=0, items=[large, picture("y", 64)])))
    assert placed == [("cached", "s0"), ("local", "")]


def test_an_encode_at_a_broken_encoder_is_not_joined() -> None:
    made = master("encode", "encode", "prefill", "decode", breaker_failures=1)
    ((_, first),) = sources(place(made, asking("a", items=[picture("x")])))
    made.finished(Finished("other", failed=[first]), 0.0)
    other = {"e0": "e1", "e1": "e0"}[first]
    assert sources(place(made, asking("b", blocks=0, items=[picture("x")]))) == [("encode", other)]


@pytest.mark.parametrize("gone", ["drain", "deregister"])
def test_a_picture_that_only_a_prefill_worker_has_is_used_there(gone: str) -> None:
    made = master("encode", *["prefill"] * 4, "decode")
    hear(made, "p3", EmbeddingStored("x"))
    getattr(made, gone)(Drain("e0"), 0.0)
    for i in range(5):
        placement = place(
            made, asking(f"r{i}", blocks=0, items=[picture("x", tokens=150)]), float(i)
        )
        assert (prefill_of(placement), sources(placement)) == ("p3", [("cached", "p3")])
        made.finished(Finished(f"r{i}"), i + 0.5)


def test_a_worker_that_encodes_by_itself_is_no_worse_without_encoders() -> None:
    made = master("encode", "prefill", "decode", "pdfusion")
    made.drain(Drain("e0"), 0.0)
    placement = place(made, asking("a", blocks=0, items=[picture("x")]))
    assert (prefill_of(placement), sources(placement)) == ("p3", [("local", "")])


def with_helper() -> Master:
    """An encoder, and a prefill worker that can encode: 32 ms a picture, 4 ms a prompt."""
    made = master("encode", "decode")
    rates = msgspec.structs.replace(RATES, prefill_ms_per_token=0.1)
    load = msgspec.structs.replace(LOAD, rates=rates)
    add(made, "p9", "prefill", dialect="openai", encodes=True, load=load)
    return made


def placed_alone(made: Master, number: int) -> tuple[str, str]:
    """Where a new picture in a prompt of 40 tokens is encoded."""
    asked = asking(str(number), blocks=0, prompt_tokens=40, items=[picture(f"x{number}")])
    return sources(place(made, asked))[0]


def test_a_prefill_worker_encodes_where_encoders_are_busier_by_an_encode() -> None:
    made = with_helper()
    found = [placed_alone(made, number) for number in range(4)]
    assert found == [("encode", "e0"), ("local", ""), ("encode", "e0"), ("local", "")]


def test_what_a_prefill_worker_encodes_counts_as_its_work() -> None:
    made = with_helper()
    pool = made.registry.fleet("m").pools["prefill"]
    row = pool.ids.index("p9")
    work = []
    for number in range(2):
        before = pool.busy_until[row]
        placed_alone(made, number)
        work.append(pool.busy_until[row] - before)
    assert work == pytest.approx([4.0, 36.0])


def test_a_prefill_worker_without_a_vision_model_encodes_nothing() -> None:
    made = master("encode", "decode")
    add(made, "p9", "prefill", dialect="openai")
    for i in range(4):
        placed = place(made, asking(str(i), blocks=0, items=[picture(f"x{i}")]))
        assert sources(placed) == [("encode", "e0")]


def test_a_picture_under_way_is_joined_rather_than_encoded_at_a_prefill_worker() -> None:
    made = with_helper()
    for i in range(3):
        items = [picture("x", tokens=1000)]
        placed = sources(place(made, asking(str(i), blocks=0, prompt_tokens=1100, items=items)))
        assert placed == [("pending" if i else "encode", "e0")]


def test_with_no_encoder_to_be_used_a_prefill_worker_encodes() -> None:
    made = with_helper()
    made.drain(Drain("e0"), 0.0)
    placed = place(made, asking("a", blocks=0, items=[picture("x")]))
    assert sources(placed) == [("local", "")]


def test_pictures_of_one_request_that_wait_for_one_another_count_with_their_wait() -> None:
    """Three of 32 ms each at one encoder are there after 96 ms, not after 32."""
    made = master("encode", "decode")
    add(made, "p9", "prefill", dialect="openai")
    items = [picture(f"x{i}", 32 * i) for i in range(3)]
    assert place(made, asking("a", blocks=0, prompt_tokens=100, items=items)).ttft_ms >= 96 + 100
