"""Mock workers that hand KV over, on virtual time: leases, dead peers."""

from typing import Any

import msgspec
import pytest

from protocol.errors import InvalidRequest
from protocol.types import GenerateRequest, MMItem
from services.mock.engine import Engine
from services.mock.kv_offers import kv_ref
from tests.support.mock_runs import WORDS, Run, asked, engine, pair

PROMPT = list(range(40))
HAND_OVER = {"do_remote_decode": True}


def prefilled(run: Run, prefill: Engine, request: GenerateRequest) -> dict[str, Any]:
    """Run the prefill stage; the handle."""
    wanted = msgspec.structs.replace(request, kv_transfer_params=HAND_OVER)
    run.fleet.add(prefill, wanted)
    run.clock.run(until=run.clock.now + 1.0)
    params = next(
        o.kv_transfer_params for _, o in run.answers[request.request_id] if o.kv_transfer_params
    )
    assert params is not None
    return params


def test_decode_goes_on_with_the_token_prefill_has_put_out() -> None:
    run, prefill, decode = pair()
    request = asked("r", PROMPT, 6)
    handle = prefilled(run, prefill, request)
    assert handle["remote_num_tokens"] == 40 and len(handle["remote_block_ids"][0]) == 3
    assert prefill.blocks.usage > 0
    begun = run.clock.now
    emitted = {0: run.tokens("r")}
    rest = msgspec.structs.replace(request, kv_transfer_params=handle, emitted=emitted)
    run.fleet.add(decode, rest)
    run.clock.run()
    assert run.tokens("r") == WORDS.answer(PROMPT, length=6)
    assert run.times("r")[1] - begun == pytest.approx(3 * 0.002 + 0.011)
    assert decode.core.transfers.fetched == 1 and run.answers["r"][1][1].cached_tokens == 40
    run.check()


def test_a_prompt_is_counted_once_where_it_is_computed_or_cached() -> None:
    run, prefill, decode = pair()
    for name in ("cold", "warm"):
        request = asked(name, PROMPT, 6)
        handle = prefilled(run, prefill, request)
        rest = {"kv_transfer_params": handle, "emitted": {0: run.tokens(name)}}
        run.fleet.add(decode, msgspec.structs.replace(request, **rest))
        run.clock.run()
    shown = ("prompt_tokens", "cached_tokens", "received_tokens")
    assert [prefill.counters()[name] for name in shown] == [80, 32, 0]
    assert [decode.counters()[name] for name in shown] == [0, 0, 80]


def test_a_proxy_that_drops_the_first_token_gets_it_again() -> None:
    run, prefill, decode = pair()
    request = asked("r", PROMPT, 6, n=2, seed=4)
    handle = prefilled(run, prefill, request)
    run.answers.clear()
    run.fleet.add(decode, msgspec.structs.replace(request, kv_transfer_params=handle))
    run.clock.run()
    for index in (0, 1):
        assert run.tokens("r", index) == WORDS.answer(PROMPT, length=6, seed=4, choice=index)
    run.check()


def test_decode_gets_the_embedding_of_a_last_token_that_it_computes_again() -> None:
    run, prefill, decode = pair()
    items = [MMItem("pic", "image", 30, 10)]
    request = asked("r", PROMPT, 6, mm_items=items)
    handle = prefilled(run, prefill, request)
    run.answers.clear()
    run.fleet.add(decode, msgspec.structs.replace(request, kv_transfer_params=handle))
    run.clock.run()
    assert run.tokens("r") == WORDS.answer(PROMPT, items, length=6)
    assert decode.core.transfers.fetched == 1
    run.check()


@pytest.mark.parametrize("decode_first", [True, False])
def test_decode_placed_ahead_waits_for_growing_kv_and_adopts_its_tokens(decode_first: bool) -> None:
    run, prefill, decode = pair()
    request = asked("r", PROMPT, 6)
    ahead = kv_ref(prefill.settings).to_params() | {"remote_request_id": "r"}
    waiting = msgspec.structs.replace(request, kv_transfer_params=ahead)
    working = msgspec.structs.replace(request, kv_transfer_params=HAND_OVER)
    stages = [(decode, waiting), (prefill, working)]
    for stage, wanted in stages if decode_first else reversed(stages):
        run.fleet.add(stage, wanted)
        run.clock.run(until=run.clock.now + 0.001)
    run.clock.run()
    made = [stage.counters()["generation_tokens"] for stage in (prefill, decode)]
    assert made == [1, 5]  # the token that decode adopts is counted where it was computed
    expected = WORDS.answer(PROMPT, length=6)
    assert run.tokens("r") == [expected[0], *expected]
    assert decode.core.transfers.fetched == 1
    run.check()


def test_the_offer_of_a_preempted_request_is_made_anew() -> None:
    """Its decode worker has asked already, and goes on waiting."""
    prefill = engine(1, role="prefill", num_blocks=11, block_size=4, max_num_batched_tokens=8)
    decode = engine(2, role="decode", block_size=4)
    run = Run([prefill, decode])
    prompts = {name: [ord(name[0])] * 32 for name in ("old", "young")}
    for name, prompt in prompts.items():
        ahead = kv_ref(prefill.settings).to_params() | {"remote_request_id": name}
        run.fleet.add(decode, asked(name, prompt, 6, kv_transfer_params=ahead))
        items = late_picture(name)
        run.fleet.add(prefill, asked(name, prompt, 6, mm_items=items, kv_transfer_params=HAND_OVER))
    run.clock.run()
    assert prefill.core.scheduler.preemptions > 0
    transfers = decode.core.transfers
    assert (transfers.fetched, transfers.failed) == (2, 0)
    for name, prompt in prompts.items():
        expected = WORDS.answer(prompt, late_picture(name), length=6)
        assert run.tokens(name) == [expected[0], *expected], name
    run.check()


def late_picture(name: str) -> list[MMItem]:
    """The older request waits for one while the younger takes blocks."""
    return [MMItem("pic", "image", 4, 20)] if name == "old" else []


def test_what_the_decode_worker_has_already_is_not_copied() -> None:
    run, prefill, decode = pair()
    for name in ("a", "b"):
        request = asked(name, PROMPT, 2)
        handle = prefilled(run, prefill, request)
        begun = run.clock.now
        run.fleet.add(decode, msgspec.structs.replace(request, kv_transfer_params=handle))
        run.clock.run()
    assert run.times("b")[1] - begun == pytest.approx(0.002 + 0.001), "a block, the last token"


def test_an_expired_lease_costs_a_computation_and_nothing_else() -> None:
    run, prefill, decode = pair(lease_s=5.0)
    request = asked("r", PROMPT, 6)
    handle = prefilled(run, prefill, request)
    run.clock.run(until=run.clock.now + 6.0)
    assert prefill.blocks.usage == 0.0 and prefill.offers.expired == 1
    run.answers.clear()
    run.fleet.add(decode, msgspec.structs.replace(request, kv_transfer_params=handle))
    run.clock.run()
    assert run.tokens("r") == WORDS.answer(PROMPT, length=6)
    assert (decode.core.transfers.fetched, decode.core.transfers.failed) == (0, 1)
    assert run.answers["r"][0][1].cached_tokens == 0
    run.check()


@pytest.mark.parametrize("ahead", [False, True])
def test_kv_that_waits_for_room_keeps_its_lease(ahead: bool) -> None:
    run, prefill, decode = pair(lease_s=2.0, max_num_seqs=1)
    run.fleet.add(decode, asked("busy", [1], 1000))
    request = asked("r", PROMPT, 6)
    if ahead:  # placed before its KV is computed
        handle = kv_ref(prefill.settings).to_params() | {"remote_request_id": "r"}
        run.fleet.add(decode, msgspec.structs.replace(request, kv_transfer_params=handle))
        prefilled(run, prefill, request)
    else:
        handle = prefilled(run, prefill, request)
        run.fleet.add(decode, msgspec.structs.replace(request, kv_transfer_params=handle))
    run.clock.run()
    assert run.times("r")[1] > 10.0 and decode.core.transfers.fetched == 1
    run.check()


def test_a_dead_prefill_worker_is_noticed() -> None:
    run, prefill, decode = pair()
    request = asked("r", PROMPT, 6)
    handle = prefilled(run, prefill, request)
    run.fleet.dead.add(prefill)
    run.answers.clear()
    run.fleet.add(decode, msgspec.structs.replace(request, kv_transfer_params=handle))
    run.clock.run()
    assert run.tokens("r") == WORDS.answer(PROMPT, length=6) and decode.core.transfers.failed == 1


def test_a_failed_load_fails_the_request_if_so_configured() -> None:
    run, prefill, decode = pair(fail_on_kv_error=True)
    request = asked("r", PROMPT, 6)
    handle = prefilled(run, prefill, request) | {"remote_request_id": "unknown"}
    run.fleet.add(decode, msgspec.structs.replace(request, kv_transfer_params=handle))
    run.clock.run()
    error = run.last("r").error
    assert error is not None and error.code == "transfer_failed"


def test_the_kv_of_another_prompt_gives_the_other_prompts_tokens() -> None:
    """As with real KV: a proxy that mixes handles up is found out by its tokens."""
    run, prefill, decode = pair()
    other = prefilled(run, prefill, asked("other", [9] * 40, 6))
    request = asked("r", PROMPT, 6, kv_transfer_params=other)
    run.fleet.add(decode, request)
    run.clock.run()
    assert run.tokens("r") == WORDS.answer([9] * 40, length=6) != WORDS.answer(PROMPT, length=6)


def test_handles_that_cannot_be_meant_are_not_used() -> None:
    run, prefill, decode = pair()
    request = asked("r", PROMPT, 4)
    good = prefilled(run, prefill, request)
    own = good["triptych"]
    broken = (
        good | {"remote_num_tokens": 41},
        good | {"remote_block_ids": [[1]]},
        good | {"triptych": {**own, "compatibility": "another model"}},
    )
    for number, handle in enumerate(broken):
        name = f"r{number}"
        run.fleet.add(decode, asked(name, PROMPT, 4, kv_transfer_params=handle))
        run.clock.run(until=run.clock.now + 1.0)
        assert run.tokens(name) == WORDS.answer(PROMPT, length=4)
    assert decode.core.transfers.failed == 3
    with pytest.raises(InvalidRequest):
        decode.add(asked("x", PROMPT, 4, kv_transfer_params={"do_remote_prefill": True}))


def test_an_aborted_request_lets_go_of_its_kv_at_both_ends() -> None:
    run, prefill, decode = pair()
    request = asked("r", PROMPT, 6)
    handle = prefilled(run, prefill, request)
    run.fleet.add(decode, msgspec.structs.replace(request, kv_transfer_params=handle))
    run.clock.run(until=run.clock.now + 0.003)
    assert len(decode.loads) == 1
    run.fleet.abort(decode, ["r"])
    run.clock.run(until=run.clock.now + 0.001)
    assert len(prefill.core.transfers.offers) == 0
    run.check()


def test_a_request_that_ends_with_its_first_token_holds_nothing() -> None:
    run, prefill, _ = pair()
    stop = WORDS.answer(PROMPT, length=1)[0]
    request = asked("r", PROMPT, 6, stop_token_ids=(stop,), kv_transfer_params=HAND_OVER)
    run.fleet.add(prefill, request)
    run.clock.run(until=1.0)
    assert run.last("r").finish_reason == "stop" and run.last("r").kv_transfer_params is None
    run.check()
