"""What `check_plan` sends, reads and judges."""

import asyncio
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from benchmarks.check_plan.__main__ import main
from benchmarks.check_plan.asks import WORDS, RequestBody, ended_answer, picture_url, text_asks
from benchmarks.check_plan.figures import Point, row, table
from benchmarks.check_plan.load import LoadPlan, carries_text, ends_answer, run, stages_of
from benchmarks.check_plan.processes import worker_flags
from benchmarks.check_plan.workloads import CHECKED, forecast, in_time, slow
from benchmarks.simulate.metrics import Figures, figures
from benchmarks.simulate.prompts import Picture, Prompt, TraceRequest
from benchmarks.simulate.records import Record, Span
from benchmarks.simulate.traces import TRACES, multi_turn
from protocol.settings import resolve
from services.mock.config import MockConfig
from services.mock.tokens import prompt_digest

BLOCK = 16
GOOD = Figures(2.0, 2.0, 1.0, 12.0, 100.0, 200.0, 10.0, 20.0, 0.0)


def test_prompts_are_as_long_as_the_trace_says_and_begin_alike_where_it_does() -> None:
    prompts = {
        turn.name: (turn, json.loads(ask.body)["prompt"])
        for session in islice(TRACES["chat"](BLOCK, 1), 60)
        for turn, ask in text_asks(session)
    }
    assert all(len(ids) == turn.tokens for turn, ids in prompts.values())
    blocks: dict[bytes, list[int]] = {}
    shared = 0
    for turn, ids in prompts.values():
        for i, key in enumerate(turn.prompt_keys):
            end = (i + 1) * BLOCK
            shared += key in blocks
            assert blocks.setdefault(key, ids[:end]) == ids[:end]
    assert shared > 100 and len({tuple(ids) for ids in blocks.values()}) == len(blocks)


def test_a_turn_begins_with_the_one_before_and_its_answer() -> None:
    session = next(s for s in multi_turn(BLOCK, 1) if len(s.turns) > 2)
    before: list[int] = []
    for turn, ask in text_asks(session):
        body = json.loads(ask.body)
        ids = body["prompt"]
        assert ids[: len(before)] == before and body["session_id"] == session.turns[0].session
        answer, _ = ended_answer(ids, (), turn.output)
        before = [*ids, *answer]


@pytest.mark.parametrize("length", [1, 40, 900])
def test_an_answer_ends_where_its_stop_token_first_stands(length: int) -> None:
    answer, fields = ended_answer([1, 2, 3], (), length)
    (stop,) = fields["stop_token_ids"]
    digest = prompt_digest([1, 2, 3])
    assert answer == WORDS.tokens(digest, fields["seed"], 0, 0, length)
    assert answer.index(stop) == length - 1 < fields["max_tokens"]


def test_two_pictures_of_one_size_are_two_files() -> None:
    one, other = (picture_url(Picture(name, 0, 256)) for name in ("a", "b"))
    assert one != other and one == picture_url(Picture("a", 7, 256))


def test_which_events_bring_text_and_which_end_an_answer() -> None:
    begun = (
        b'data: {"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n'
    )
    word = b'data: {"choices":[{"text":" is","finish_reason":null}]}\n'
    end = b'data: {"choices":[{"delta":{"content":""},"finish_reason":"stop"}]}\n'
    assert [carries_text(line) for line in (begun, word, end, b"\n")] == [False, True, False, False]
    assert [ends_answer(line) for line in (begun, word, end)] == [False, False, True]


def test_stages_are_read_from_server_timing() -> None:
    assert stages_of("place;dur=1.50, prefill;dur=20.00, total;dur=22.25") == [
        ("place", 1.5), ("prefill", 20.0), ("total", 22.25),
    ]  # fmt: skip
    assert stages_of("") == []


def test_mock_workers_are_told_what_simulated_ones_are() -> None:
    profile = replace(slow(), prefill_blocks=7, decode_blocks=9, encoder_bytes=1 << 20)
    told = {
        role: resolve(MockConfig, ["--role", role, *worker_flags(profile, role)])
        for role in ("encode", "prefill", "decode")
    }
    assert [c.timing() for c in told.values()] == [profile.timing] * 3
    assert told["prefill"].num_gpu_blocks_override == 7
    assert told["decode"].num_gpu_blocks_override == 9
    assert told["encode"].embedding_cache_bytes == 1 << 20
    assert told["prefill"].embedding_cache_bytes == profile.prefill_media_bytes
    for name in ("block_size", "kv_bytes_per_token", "max_prefill_beside_decode", "jitter"):
        assert getattr(told["decode"], name) == getattr(profile, name)
    assert told["decode"].max_num_seqs == profile.max_running
    assert told["decode"].heartbeat_interval == profile.heartbeat_s


def answered(first: float, last: float, refused: str = "") -> Record:
    prompt = Prompt(BLOCK)
    prompt.add(1, 40)
    request: TraceRequest = prompt.request("r", 2, 11)
    return Record(request, 1.0, (1.0, 0.1), first, last, 0, refused)


def test_figures_count_what_was_good() -> None:
    records = [
        answered(1.5, 2.0),
        answered(2.5, 3.0),  # late
        answered(1.5, 3.0),  # slow
        answered(math.inf, math.inf, "503"),
    ]
    found = figures(records, 2.0, 4.0)
    assert (found.offered, found.goodput, found.attained, found.refused) == (2.0, 0.5, 0.25, 0.25)
    assert found.ttft_p50 == pytest.approx(500.0) and found.ttft_p99 == pytest.approx(1500.0)
    assert found.lifetimes == pytest.approx(1.0)


def test_lifetimes_count_those_that_have_not_ended() -> None:
    """Two have lived 3 s and 0.5 s; what was refused has not lived."""
    records = [answered(2.0, math.inf), answered(1.2, 1.5), answered(math.inf, math.inf, "503")]
    assert figures(records, 7.0, 4.0).lifetimes == pytest.approx(7.0 / 1.75)
    assert figures([], 2.0, 4.0) == Figures(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def point(goodput: float, predicted: Sequence[float]) -> Point:
    said = tuple(replace(GOOD, goodput=one) for one in predicted)
    return Point("chat", "0E1P2D", 1.0, said, replace(GOOD, goodput=goodput), 3.0, {"proxy": 0.2})


def test_the_bar_is_ten_percent_of_the_mean_forecast() -> None:
    near, far = point(1.9, (1.9, 2.1)), point(1.7, (1.9, 2.1))
    assert (row(near, judged=True).holds, row(far, judged=True).holds) == (True, False)
    assert row(far, judged=False).holds is None
    assert "| 1.90 / 2.00 (1.90 to 2.10) | 0.95 |" in table([near])


def test_a_forecast_is_of_the_same_requests_for_every_seed() -> None:
    checked, profile = CHECKED[0], slow()
    sessions = list(in_time(TRACES["chat"](profile.block_size, 1), 2.0, 60.0))
    assert sessions[-1].start / 2.0 < 60.0
    found = forecast(checked, profile, sessions, 2.0, Span(2.0, 8.0, 1.0, 8.0), (1, 2))
    assert found.end_s == pytest.approx(10.0)
    one, two = found.found
    assert one.offered == two.offered > 1.0 and one.ttft_p50 != two.ttft_p50


WORD = b'data: {"choices":[{"text":" is","finish_reason":null}]}\n\n'
ENDED = b'data: {"choices":[{"text":" so","finish_reason":"stop"}]}\n\n'


def sent(answer: bytes) -> list[Record]:
    """What becomes of a session of two turns whose requests are all answered so."""
    session = next(one for one in multi_turn(BLOCK, 1) if len(one.turns) > 1)
    turns = tuple(replace(turn, think_s=0.0) for turn in session.turns[:2])
    session = replace(session, start=0.0, turns=turns)
    bodies = {turn.name: RequestBody("/", b"{}") for turn in turns}
    plan = LoadPlan([session], bodies, CHECKED[0].aims(slow()), 1.0, 0.0, 1.0)

    async def answered(request: web.Request) -> web.Response:
        return web.Response(body=answer)

    async def run_beside_server() -> list[Record]:
        app = web.Application()
        app.router.add_post("/", answered)
        async with TestServer(app) as server:
            url = str(server.make_url("")).rstrip("/")
            return (await run(url, plan, dict)).records

    return asyncio.run(run_beside_server())


def test_a_session_goes_on_after_any_answer() -> None:
    assert [record.refused for record in sent(WORD + ENDED)] == ["", ""]
    assert [record.refused for record in sent(WORD)] == ["broken", "broken"]
    long = b"data: " + b"x" * (1 << 20)
    assert [record.refused for record in sent(long)] == ["LineTooLong", "LineTooLong"]


def test_an_error_of_the_client_itself_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(line: bytes) -> bool:
        raise KeyError("a mistake")

    monkeypatch.setattr("benchmarks.check_plan.load.carries_text", broken)
    with pytest.raises(KeyError, match="a mistake"):
        sent(WORD + ENDED)


def test_a_load_that_is_no_number_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    for loads in ("x", "1,", "0", "nan"):
        with pytest.raises(SystemExit, match="2"):
            main(["--loads", loads])
        assert f"--loads: '{loads}' is not positive numbers" in capsys.readouterr().err
