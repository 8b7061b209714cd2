"""Generate calls and their answers: what is written is read, and tokens are counted."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.encoder_cache import item_metadata
from protocol.errors import InternalError, InvalidRequest, error_info
from protocol.generate import decode_abort, decode_generate, encode_generate
from protocol.generate_answers import TokenCounts, UsageBody, answer_of, check_spans, whole_answer
from protocol.refs import KVRef
from protocol.types import (
    GenerateRequest,
    MMItem,
    Modality,
    PositionLogprobs,
    RequestOutput,
    SamplingParams,
)

TOKENS = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5)
KINDS: tuple[Modality, ...] = ("image", "video", "audio")
GRIDS = st.sampled_from([(), (1, 2, 4), (2**31 - 1,)])


@st.composite
def requests(draw: st.DrawFn) -> GenerateRequest:
    items, at = [], 0
    for number in range(draw(st.integers(0, 3))):
        at += draw(st.integers(0, 4))
        length = draw(st.integers(1, 9))
        kind = draw(st.sampled_from(KINDS))
        items.append(MMItem(f"h{number}", kind, at, length, draw(GRIDS)))
        at += length
    return GenerateRequest(
        request_id=draw(st.text(max_size=5)),
        token_ids=draw(TOKENS),
        sampling=SamplingParams(max_tokens=draw(st.integers(1, 9)), n=draw(st.integers(1, 9))),
        mm_items=items,
        emitted=draw(st.dictionaries(st.integers(0, 127), TOKENS, max_size=3)),
        model=draw(st.text(max_size=3)),
        priority=draw(st.integers(-9, 9)),
        deadline_s=draw(st.none() | st.floats(0, 1e6)),
        cache_salt=draw(st.text(max_size=3)),
        kv_transfer_params=draw(st.none() | st.just({"do_remote_decode": True})),
    )


@given(requests(), st.booleans())
def test_a_request_arrives_as_it_was_sent(request: GenerateRequest, stream: bool) -> None:
    sent = msgspec.convert(msgspec.to_builtins(request), GenerateRequest)
    found, streams = decode_generate(encode_generate(request, stream=stream))
    params = found.ec_transfer_params
    assert (params is None) == (not request.mm_items) and streams is stream
    for item in request.mm_items:
        assert params is not None
        entry = params[item.mm_hash]
        assert entry == {"modality": item.modality, "metadata": item_metadata(item)}
    found.ec_transfer_params = None
    assert found == sent


def body(**fields: Any) -> bytes:
    return json.dumps({"token_ids": [1, 2, 3], **fields}).encode()


def test_what_an_entry_says_goes_before_what_the_item_says() -> None:
    item = MMItem("h", "image", 0, 1, (1, 2, 2))
    request = GenerateRequest(
        "r", [1], SamplingParams(), [item], ec_transfer_params={"h": {"a": 1}}
    )
    found, _ = decode_generate(encode_generate(request, stream=False))
    metadata = {"image_grid_thw": [1, 2, 2]}
    assert found.ec_transfer_params == {"h": {"modality": "image", "metadata": metadata, "a": 1}}


@pytest.mark.parametrize("index", ["0", "127", "007"])
def test_choices_are_named_by_small_numbers(index: str) -> None:
    request, _ = decode_generate(body(emitted={index: [5]}))
    assert request.emitted == {int(index): [5]}


@pytest.mark.parametrize("index", ["128", "-1", "x", "", "²", "0007", "1" * 5000])
def test_other_names_of_choices_are_refused(index: str) -> None:
    with pytest.raises(InvalidRequest, match="0 to 127"):
        decode_generate(body(emitted={index: [5]}))


def test_one_choice_has_one_entry() -> None:
    with pytest.raises(InvalidRequest, match="one choice has two entries"):
        decode_generate(body(emitted={"1": [5], "01": [6]}))


def featured(grid: Any) -> bytes:
    features = {
        "mm_hashes": {"image": ["h"]},
        "mm_placeholders": {"image": [{"offset": 0, "length": 1}]},
    }
    params = {"h": {"metadata": {"image_grid_thw": grid}}}
    return body(features=features, ec_transfer_params=params)


@pytest.mark.parametrize("grid", [[0], [1, -1], [2**31], [True], [1.0], "1", 7])
def test_a_grid_is_positive_integers_of_32_bits(grid: Any) -> None:
    with pytest.raises(InvalidRequest, match="image_grid_thw must be a list of positive integers"):
        decode_generate(featured(grid))


@pytest.mark.parametrize("grid", [[1], [1, 2**31 - 1]])
def test_a_grid_may_be_as_large_as_32_bits_hold(grid: list[int]) -> None:
    assert decode_generate(featured(grid))[0].mm_items[0].grid == tuple(grid)


def test_hashes_and_spans_are_as_many_and_in_the_order_of_the_prompt() -> None:
    hashes = {"image": ["b", "a"], "audio": ["c"]}
    spans = {"image": [{"offset": 4, "length": 1}, {"offset": 0, "length": 2}]}
    with pytest.raises(InvalidRequest, match="1 mm_hashes but 0 mm_placeholders for audio"):
        decode_generate(body(features={"mm_hashes": hashes, "mm_placeholders": spans}))
    spans["audio"] = [{"offset": 2, "length": 1}]
    request, _ = decode_generate(body(features={"mm_hashes": hashes, "mm_placeholders": spans}))
    assert [item.mm_hash for item in request.mm_items] == ["a", "c", "b"]


def test_only_tokens_are_answered() -> None:
    with pytest.raises(InvalidRequest, match="output_mode"):
        decode_generate(body(output_mode="text"))
    assert decode_generate(body(output_mode="tokens"))[1] is False


def test_an_abort_names_its_requests() -> None:
    assert decode_abort(b'{"request_ids":["a","b"]}') == ["a", "b"]


def asked(spans: list[tuple[int, int]], prompt: int = 6) -> GenerateRequest:
    items = [MMItem("h", "image", offset, length) for offset, length in spans]
    return GenerateRequest("r", [1] * prompt, SamplingParams(), items, emitted={0: [7, 8], 1: [9]})


@pytest.mark.parametrize("spans", [[], [(0, 6)], [(0, 1), (1, 5)], [(2, 1), (5, 1)]])
def test_spans_may_touch_each_other_and_the_ends(spans: list[tuple[int, int]]) -> None:
    check_spans(asked(spans))


@pytest.mark.parametrize("spans", [[(0, 7)], [(0, 2), (1, 1)], [(3, 1), (0, 1)], [(0, 0)],
                                   [(-1, 2)], [(6, 1)]])  # fmt: skip
def test_spans_that_overlap_or_leave_the_prompt_are_refused(spans: list[tuple[int, int]]) -> None:
    with pytest.raises(InvalidRequest, match="overlaps another or leaves"):
        check_spans(asked(spans))


def test_tokens_are_counted_with_those_that_were_there_before() -> None:
    counts = TokenCounts(asked([]))
    first = counts.step(
        [RequestOutput("r", 0, [1, 2], cached_tokens=4), RequestOutput("r", 1, [3])]
    )
    assert first.usage == UsageBody(6, 6, 4) and [c.token_ids for c in first.choices] == [
        [1, 2],
        [3],
    ]
    later = counts.step([RequestOutput("r", 0, [4], cached_tokens=2)])
    assert later.usage == UsageBody(6, 7, 4), "most of what any output says"
    assert counts.step([RequestOutput("r", 0, [5])]).usage is None, "it says nothing of caches"
    assert counts.step([RequestOutput("r", 0, [], cached_tokens=0)]).usage == counts.body()
    assert counts.body() == UsageBody(6, 8, 4)


def test_one_event_has_what_any_of_its_outputs_says() -> None:
    error = error_info(InternalError("broken"))
    handle = {"do_remote_prefill": True}
    found = answer_of([
        RequestOutput("r", 1, [1], finish_reason="stop", stop_reason=5, logprobs=[]),
        RequestOutput("r", 0, [], error=error, kv_transfer_params=handle, prompt_logprobs=[]),
    ])  # fmt: skip
    assert (found.request_id, found.error, found.kv_transfer_params) == ("r", error, handle)
    assert found.prompt_logprobs == [] and found.usage is None
    first, second = found.choices
    assert (first.index, first.finish_reason, first.stop_reason) == (1, "stop", 5)
    assert first.logprobs is not None and second.logprobs is None


def test_a_whole_answer_has_each_choice_put_together_in_order() -> None:
    handle = {"do_remote_prefill": True}
    outputs = [
        RequestOutput("r", 1, [1], cached_tokens=2),
        RequestOutput("r", 0, [2], kv_transfer_params=handle),
        RequestOutput("r", 1, [3], finish_reason="stop", stop_reason="x"),
        RequestOutput("r", 0, [4, 5], finish_reason="length"),
    ]
    found = whole_answer(asked([]), outputs)
    assert [(c.index, c.token_ids, c.finish_reason, c.stop_reason) for c in found.choices] == [
        (0, [2, 4, 5], "length", None), (1, [1, 3], "stop", "x")
    ]  # fmt: skip
    assert found.usage == UsageBody(6, 8, 2) and found.kv_transfer_params == handle
    assert all(choice.logprobs is None for choice in found.choices)


def test_log_probabilities_of_a_choice_follow_one_another() -> None:
    one, two = (PositionLogprobs(token, -1.0, 1) for token in (4, 5))
    outputs = [
        RequestOutput("r", 0, [4], logprobs=[one]),
        RequestOutput("r", 0, [5], logprobs=[two]),
    ]
    (choice,) = whole_answer(asked([]), outputs).choices
    assert choice.logprobs is not None and choice.logprobs.content == [one, two]


REF = KVRef(
    "r", "i", (3, 1), 16, rope_delta=-4, host="h", port=9, compatibility="c", generation=2,
    lease_s=1.5, tp_size=2, descriptor={"a": [1]},
)  # fmt: skip


def test_a_handle_arrives_as_it_was_made_in_vllms_words() -> None:
    params = REF.to_params()
    assert KVRef.from_params(json.loads(json.dumps(params))) == REF
    assert (params["do_remote_prefill"], params["do_remote_decode"]) == (True, False)
    assert params["remote_block_ids"] == [[3, 1]] and params["transfer_mode"] == "pull"
    del params["tp_size"]
    assert KVRef.from_params(params).tp_size == 1


def test_kv_without_tokens_is_still_computed() -> None:
    assert not REF.growing
    assert msgspec.structs.replace(REF, num_tokens=0).growing
    assert not msgspec.structs.replace(REF, num_tokens=1).growing


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"triptych": None}, "lack the 'triptych' part"),
        ({"remote_block_ids": []}, "must hold one list"),
        ({"remote_block_ids": [[1], [2]]}, "must hold one list"),
        ({"remote_block_ids": "x"}, "must hold one list"),
        ({"remote_port": -1}, "remote_port"),
        ({"remote_num_tokens": None}, "remote_num_tokens"),
    ],
)
def test_a_handle_that_is_none_is_told_why(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as caught:
        KVRef.from_params({**REF.to_params(), **change})
    assert caught.value.param == "kv_transfer_params"


def test_runs_of_a_span() -> None:
    """A clip whose frames stand apart: the wire says where, and where it ends."""
    clip = MMItem("h", "video", 2, 6, (3, 2, 4), gaps=(1, 2))
    assert clip.runs == [(2, 4), (5, 7), (9, 11)] and clip.end == 11
    request = GenerateRequest("r", [1] * 12, SamplingParams(), [clip])
    found, _ = decode_generate(encode_generate(request, stream=False))
    assert found.mm_items == [clip]
    check_spans(found)
    for wrong, said in (({"offset": 4}, "leaves"), ({"length": 5}, "no 3 runs of one length")):
        request.mm_items = [msgspec.structs.replace(clip, **wrong)]
        with pytest.raises(InvalidRequest, match=said):
            check_spans(request)


@pytest.mark.parametrize("gaps", [3, [-1], ["1"], [True]])
def test_gaps_that_are_none(gaps: object) -> None:
    features = {
        "mm_hashes": {"video": ["h"]},
        "mm_placeholders": {"video": [{"offset": 0, "length": 2}]},
    }
    entry = {"h": {"metadata": {"video_grid_thw": [2, 2, 2], "tokens_between_grid_ts": gaps}}}
    with pytest.raises(InvalidRequest, match="tokens_between_grid_ts"):
        decode_generate(body(features=features, ec_transfer_params=entry))
