"""What a record says of a request's stages and of its end."""

import re

import pytest

from protocol.request_record import RequestRecord


def test_calls_that_overlap_count_once_and_attempts_add_up() -> None:
    record = RequestRecord()
    first, second = record.begin("encode", 10.0), record.begin("encode", 10.1)
    second.end = 10.2
    assert record.stages_ms(10.3) == {"encode": pytest.approx(300)}
    first.end = 10.4
    assert record.stages_ms(99.0) == {"encode": pytest.approx(400)}
    record.begin("encode", 20.0).end = 20.1
    assert record.stages_ms(99.0) == {"encode": pytest.approx(500)}


def test_server_timing_has_each_stage_and_the_total() -> None:
    record = RequestRecord("/v1/chat/completions", "me")
    with record.during("queue"):
        pass
    record.begin("decode", record.start, "http://d")
    said = record.server_timing().decode()
    assert re.fullmatch(r"queue;dur=\d+\.\d\d, decode;dur=\d+\.\d\d, total;dur=\d+\.\d\d", said)


def test_the_line_leaves_out_what_is_not_known() -> None:
    record = RequestRecord("/v1/completions", "me")
    assert not {"ttft_ms", "prompt_tokens", "cached_tokens"} & record.fields().keys()
    record.begin("prefill", record.start, "http://p1").end = record.start + 0.25
    record.begin("prefill", record.start + 1, "http://p2").end = record.start + 1.5
    record.used("prefill", "http://p2")
    record.prompt_tokens = record.cached_tokens = 0
    line = record.fields()
    assert line["prefill_ms"] == pytest.approx(750)
    assert line["prefill_worker"] == "http://p1,http://p2"
    assert (line["prompt_tokens"], line["cached_tokens"]) == (0, 0)
    assert "completion_tokens" not in line


@pytest.mark.parametrize(
    ("status", "outcome", "result"),
    [(200, "", "ok"), (200, "upstream_error", "upstream_error"), (0, "", "aborted"),
     (404, "", "refused")],
)  # fmt: skip
def test_how_it_ended(status: int, outcome: str, result: str) -> None:
    record = RequestRecord()
    record.status, record.outcome = status, outcome
    assert record.result() == result


def test_a_request_that_has_ended_takes_no_longer() -> None:
    record = RequestRecord("/v1/completions", "me")
    record.first_output(record.start + 0.25)
    record.first_output(record.start + 0.5)
    record.ended_at = record.start + 1.5
    line = record.fields()
    assert (line["ms"], line["ttft_ms"]) == (pytest.approx(1500), pytest.approx(250))


@pytest.mark.parametrize(
    ("status", "outcome", "result"),
    [(0, "", "aborted"), (200, "", "ok"), (307, "", "ok"), (399, "", "ok"), (400, "", "refused"),
     (503, "", "refused"), (200, "broken", "broken")],
)  # fmt: skip
def test_how_it_ended_is_one_word(status: int, outcome: str, result: str) -> None:
    record = RequestRecord("/v1/completions", "me")
    record.status, record.outcome = status, outcome
    assert record.result() == record.fields()["outcome"] == result


def test_calls_of_another_stage_do_not_overlap() -> None:
    record = RequestRecord()
    record.begin("encode", 10.0).end = 10.5
    record.begin("prefill", 10.2).end = 10.4
    record.begin("encode", 10.25).end = 10.3
    assert record.stages_ms(99.0) == {"encode": pytest.approx(500), "prefill": pytest.approx(200)}


def test_a_record_begins_with_nothing_known() -> None:
    record = RequestRecord()
    assert not (record.explained or record.streamed or record.reasons or record.ended_at)
    assert record.result() == "aborted" and record.fields()["retries"] == 0
