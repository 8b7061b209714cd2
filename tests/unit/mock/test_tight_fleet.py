"""The engine's core in fleets with hardly any room, on virtual time: everything ends, rightly."""

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from protocol.types import EncodeItem, EncodeRequest, GenerateRequest, MMItem
from services.mock.engine import Engine
from services.mock.kv_offers import kv_ref
from services.mock.timing import Timing
from tests.support.mock_runs import WORDS, Run, asked, engine

TIMING = Timing(
    prefill_base_ms=1, prefill_token_ms=1, decode_base_ms=10, decode_request_ms=1, kv_block_ms=2,
    encode_base_ms=5, ec_token_ms=1, kv_host_block_ms=1, kv_disk_block_ms=3,
)  # fmt: skip
PICTURE = 6
TIERS = st.sampled_from([{}, {"host_blocks": 5}, {"host_blocks": 3, "disk_blocks": 9}])
Asked = tuple[int, int, int, bool, bool, int]
REQUESTS = st.lists(
    st.tuples(
        st.integers(1, 24),  # prompt tokens, beside a picture
        st.integers(1, 9),  # output tokens
        st.integers(0, 3),  # what the prompt begins with
        st.booleans(),  # a picture
        st.booleans(),  # decode is asked first
        st.integers(0, 40),  # ms until the next
    ),
    max_size=12,
)


def fleet(**options: Any) -> tuple[Run, Engine, Engine, Engine]:
    shared: dict[str, Any] = {
        "timing": TIMING,
        "block_size": 4,
        "lease_s": 5.0,
        "remote_embeddings": True,
    }
    prefill = engine(
        1, role="prefill", num_blocks=11, max_num_batched_tokens=9, **shared, **options
    )
    decode = engine(2, role="decode", num_blocks=12, max_num_seqs=3, **shared, **options)
    encoder = engine(3, role="encode", timing=TIMING)
    return Run([prefill, decode, encoder]), prefill, decode, encoder


def source(number: int, what: Asked) -> tuple[GenerateRequest, list[MMItem]]:
    length, most, start, pictured, _, _ = what
    items = [MMItem(f"pic{start}", "image", 1, PICTURE)] if pictured else []
    prompt = [start] * (1 + PICTURE * pictured + length)
    return asked(f"r{number}", prompt, most, mm_items=items), items


def hand_over(run: Run, prefill: Engine, decode: Engine, number: int, what: Asked) -> None:
    ahead = kv_ref(prefill.settings).to_params() | {"remote_request_id": f"r{number}"}
    stages = [(prefill, {"do_remote_decode": True}), (decode, ahead)]
    for stage, params in reversed(stages) if what[4] else stages:
        request, _ = source(number, what)
        request.kv_transfer_params = params
        run.fleet.add(stage, request)


@settings(max_examples=60, deadline=None)
@given(requests=REQUESTS, steps=st.sampled_from([1, 3, 1 << 20]), tiers=TIERS)
@example(requests=[(24, 9, 0, True, True, 0)] * 12, steps=1, tiers={})
def test_all_handed_over_requests_end_with_their_tokens(
    requests: list[Asked], steps: int, tiers: dict[str, int]
) -> None:
    run, prefill, decode, encoder = fleet(steps_at_once=steps, **tiers)
    for number, what in enumerate(requests):
        hand_over(run, prefill, decode, number, what)
        if what[3]:
            item = EncodeItem(f"pic{what[2]}", "image", PICTURE, data=b"x")
            run.fleet.add_encode(encoder, EncodeRequest(f"e{number}", [item]))
        run.clock.run(until=run.clock.now + what[5] / 1e3)
        for member in (prefill, decode):
            assert member.check_integrity() == []
    run.clock.run(until=run.clock.now + 60.0)
    for number, what in enumerate(requests):
        request, items = source(number, what)
        expected = WORDS.answer(request.token_ids, items, length=what[1])
        said = run.tokens(f"r{number}")
        # The first token comes from prefill and, with the KV or computed again, from decode.
        assert said == [expected[0], *expected], (number, said, expected)
    run.check()
    assert decode.core.transfers.fetched + decode.core.transfers.failed == len(requests)


@settings(max_examples=30, deadline=None)
@given(
    requests=REQUESTS, gone=st.lists(st.integers(0, 11), max_size=6), dies=st.booleans(),
    tiers=TIERS,
)  # fmt: skip
def test_what_is_aborted_or_dies_leaves_nothing_behind(
    requests: list[Asked], gone: list[int], dies: bool, tiers: dict[str, int]
) -> None:
    run, prefill, decode, _ = fleet(**tiers)
    for number, what in enumerate(requests):
        hand_over(run, prefill, decode, number, (*what[:3], False, *what[4:]))
        run.clock.run(until=run.clock.now + what[5] / 1e3)
        for name in (f"r{n}" for n in gone if n <= number):
            run.fleet.abort(prefill, [name])
            run.fleet.abort(decode, [name])
    if dies:
        run.fleet.kill(prefill)
    run.clock.run(until=run.clock.now + 60.0)
    assert decode.check_integrity() == [] and decode.blocks.usage == 0.0
    assert len(decode.core) == len(decode.loads) == 0
    if not dies:
        run.check()
