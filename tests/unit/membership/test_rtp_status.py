"""RTP-LLM's view of a worker: version cursors in both spellings, tasks in their phases."""

import pytest

from protocol.errors import InvalidRequest, Unavailable
from protocol.rtp_status import StatusQuery, parse_query
from protocol.types import RequestOutput
from services.membership.tasks import TaskLog


@pytest.mark.parametrize(
    ("body", "params", "wanted"),
    [
        (b"", {}, StatusQuery(-1, -1)),
        (b'{"latest_cache_version": 3, "latest_finished_version": 4}', {}, StatusQuery(3, 4)),
        (b'{"lastest_cache_version": 3, "latest_finised_version": null}', {}, StatusQuery(3, None)),
        (b"", {"lastest_cache_version": "7", "who": "cares"}, StatusQuery(7, -1)),
    ],
)
def test_cursors_are_read_in_both_spellings(
    body: bytes, params: dict[str, str], wanted: StatusQuery
) -> None:
    assert parse_query(body, params) == wanted


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{", None),
        (b"[]", None),
        (b"\xff", None),
        (b'{"deep":' + b"[" * 100_000, None),
        (b'{"latest_cache_version": "new"}', "latest_cache_version"),
        (b'{"lastest_cache_version": 1.5}', "latest_cache_version"),
        (b'{"latest_finished_version": -2}', "latest_finished_version"),
        (b'{"latest_cache_version": %d}' % (1 << 63), "latest_cache_version"),
        (b'{"latest_cache_version": %d}' % 10**30, "latest_cache_version"),
    ],
)
def test_bad_cursors_are_refused_by_name(body: bytes, param: str | None) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_query(body, {})
    assert refused.value.param == param


def test_tasks_are_told_while_they_run_and_once_when_they_have_ended() -> None:
    now = 0.0
    log = TaskLog(clock=lambda: now)
    with log.task("a", 100) as task:
        now = 0.25
        (info,) = log.running()
        assert (info.phase, info.waiting_time_ms, info.execution_time_ms) == ("RECEIVED", 250, 0)
        task.observe([RequestOutput("a", token_ids=[1], cached_tokens=64)])
        now = 1.0
        task.observe([RequestOutput("a", token_ids=[2])])
        (info,) = log.running()
        assert (info.phase, info.waiting_time_ms, info.execution_time_ms) == ("RUNNING", 250, 750)
        assert (info.prefix_length, info.input_length, info.iterate_count) == (64, 100, 2)
        assert log.ended(-1) == [] and log.version == 0
    assert log.running() == []
    with pytest.raises(Unavailable), log.task("b", 5):
        raise Unavailable("no room")
    assert log.version == 2
    assert [(t.request_id, t.error_info) for t in log.ended(-1)] == [("a", ""), ("b", "no room")]
    assert [t.request_id for t in log.ended(1)] == ["b"] and log.ended(2) == []
    assert log.ended(0)[0].end_time_ms > 0


def test_a_caller_that_knew_an_earlier_process_is_told_everything() -> None:
    log = TaskLog()
    with log.task("r", 1):
        pass
    assert [len(log.ended(since)) for since in (0, 1, 2)] == [1, 0, 1]
