"""The line that each request leaves, `Server-Timing` and ids, in both dialects."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from protocol.request_record import RequestRecord
from proxy.request_log import RequestLog, note_usage
from services.frontend.render import Frontend
from tests.support.frontend_helpers import frontend, write_model
from tests.support.relay_failures import drop
from tests.support.relay_workers import (
    CHAT,
    DONE,
    EVENTS,
    Asked,
    Relayed,
    Worker,
    begin,
    chunk,
    data_url,
    pictures,
    relaying,
    send,
    text,
)
from tests.support.scripted_apps import app_of
from tests.support.scripted_workers import TOKENS, before
from tests.support.scripted_workers import Worker as TokensWorker
from tests.support.waiting import eventually

USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
TIMED = {"queue", "place", "render", "encode", "prefill", "decode", "total"}


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Frontend:
    path: Path = tmp_path_factory.mktemp("model") / "tiny"
    return frontend(write_model("qwen2_5_vl", path))


@pytest.fixture(autouse=True)
def informed() -> Iterator[None]:
    found = logging.getLogger("proxy.request_log")
    found.setLevel("INFO")
    yield
    found.setLevel(logging.NOTSET)


class Lines:
    """Lines of requests, read as JSON once they are written."""

    def __init__(self) -> None:
        self.text = ""
        self.log = RequestLog(True, "json", self._take)

    def _take(self, lines: str) -> None:
        self.text += lines

    async def one(self) -> dict[str, Any]:
        """The only line so far."""
        await eventually(lambda: bool(self._flushed()))
        (line,) = self._flushed()
        found: dict[str, Any] = json.loads(line)
        return found

    def _flushed(self) -> list[str]:
        self.log.flush()
        return self.text.splitlines()


@asynccontextmanager
async def logged(topology: str, *flags: str) -> AsyncIterator[tuple[Relayed, Lines]]:
    async with relaying(topology, *flags) as proxy:
        lines = Lines()
        proxy.gateway.log = lines.log
        yield proxy, lines


async def with_usage(worker: Worker, asked: Asked, writer: asyncio.StreamWriter) -> None:
    await send(writer, json.dumps({"choices": [], "usage": USAGE}).encode())


async def broken(worker: Worker, asked: Asked, writer: asyncio.StreamWriter) -> None:
    await begin(writer)
    await chunk(writer, EVENTS[0])
    writer.close()


async def silent(worker: Worker, asked: Asked, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


def timings(headers: Any) -> dict[str, float]:
    parts = (part.split(";dur=") for part in headers["server-timing"].split(", "))
    return {name: float(value) for name, value in parts}


async def test_a_relayed_request_leaves_one_line() -> None:
    async with logged("EPD") as (proxy, lines):
        proxy.workers["decode"][0].script = [with_usage]
        headers = {"x-request-id": "me"}
        body = pictures(data_url("a"), data_url("b"))
        async with proxy.session.post(proxy.url + CHAT, json=body, headers=headers) as response:
            assert response.headers["x-request-id"] == "me"
            timed, size = timings(response.headers), len(await response.read())
        assert {"encode", "prefill", "decode", "total"} <= timed.keys() <= TIMED
        assert timed["total"] >= timed["decode"] > 0
        line = await lines.one()
        assert (line["id"], line["path"], line["model"]) == ("me", CHAT, "m")
        assert (line["status"], line["outcome"], line["media"]) == (200, "ok", 2)
        assert line["message"] == "request" and line["stream"] is False
        for role in ("encode", "prefill", "decode"):
            assert line[f"{role}_worker"] == proxy.workers[role][0].url
            assert 0 < line[f"{role}_ms"] <= line["ms"]
        assert (line["prompt_tokens"], line["completion_tokens"]) == (7, 3)
        assert line["cached_tokens"] == 4
        assert line["bytes_in"] == len(json.dumps(body)) and line["bytes_out"] == size


async def test_a_relayed_request_that_is_logged_is_counted_by_model() -> None:
    async with relaying("PD", "--log-requests") as proxy:
        async with proxy.session.post(proxy.url + CHAT, json=text()) as response:
            await response.read()
        registry = proxy.gateway.metrics.registry
        name = "triptych_proxy:model_stage_seconds_count"
        labels = {"model": "m", "stage": "decode"}
        await eventually(lambda: registry.get_sample_value(name, labels) == 1)


async def test_a_stream_has_what_is_known_when_it_begins() -> None:
    async with logged("PD") as (proxy, lines):
        async with proxy.session.post(proxy.url + CHAT, json=text(stream=True)) as response:
            assert {"prefill", "decode", "total"} == timings(response.headers).keys()
            assert len(response.headers["x-request-id"]) == 32
            size = len(await response.read())
        line = await lines.one()
        assert line["stream"] is True and line["bytes_out"] == size
        assert 0 < line["ttft_ms"] <= line["ms"]
        assert "prompt_tokens" not in line


async def test_a_stream_that_breaks_says_why() -> None:
    async with logged("D", "--max-retries", "0") as (proxy, lines):
        proxy.workers["decode"][0].script = [broken]
        status, data = await proxy.post(text(stream=True))
        assert status == 200 and data.endswith(DONE)
        line = await lines.one()
        assert line["status"] == 200 and line["outcome"] not in ("ok", "aborted")


async def test_a_client_that_leaves_and_another_attempt() -> None:
    async with logged("DD") as (proxy, lines):
        first, second = proxy.workers["decode"]
        first.script = second.script = [drop, silent]  # in the order in which they are asked
        client = asyncio.create_task(proxy.post(text()))
        await eventually(lambda: len(first.asked) + len(second.asked) == 2)
        client.cancel()
        await asyncio.gather(client, return_exceptions=True)
        line = await lines.one()
        assert (line["status"], line["outcome"], line["retries"]) == (0, "aborted", 1)
        assert line["decode_worker"].count("http://") == 2


async def test_a_refusal_leaves_a_line_too() -> None:
    async with logged("D", "--max-body-bytes", "1000") as (proxy, lines):
        async with proxy.session.post(proxy.url + CHAT, data=b"x" * 2000) as response:
            assert response.status == 413 or response.status == 415
            assert len(response.headers["x-request-id"]) == 32
        line = await lines.one()
        assert line["status"] == response.status and line["outcome"] != "ok"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_rendered_request_leaves_the_same_line(stream: bool, front: Frontend) -> None:
    prefill, decode, lines = TokensWorker(), TokensWorker(), Lines()
    async with (
        before(prefill=[prefill], decode=[decode]) as stack,
        app_of(stack, front, lines.log) as url,
        aiohttp.ClientSession() as session,
    ):
        body = {"model": "tiny", "max_tokens": len(TOKENS), "stream": stream,
                "messages": [{"role": "user", "content": "Hello"}]}  # fmt: skip
        headers = {"x-request-id": "me"}
        async with session.post(url + CHAT, json=body, headers=headers) as response:
            assert response.status == 200 and response.headers["x-request-id"] == "me"
            timed = timings(response.headers)
            size = len(await response.read())
        assert {"render", "place", "prefill", "total"} <= timed.keys() <= TIMED
        line = await lines.one()
        assert line["id"].startswith("me-") and line["model"] == "tiny"
        assert (line["status"], line["outcome"], line["stream"]) == (200, "ok", stream)
        assert line["completion_tokens"] == len(TOKENS) and line["prompt_tokens"] > 0
        assert line["decode_worker"] == stack.decode[0].url
        assert 0 < line["prefill_ms"] <= line["ms"] and 0 < line["ttft_ms"] <= line["ms"]
        assert line["bytes_in"] == len(json.dumps(body)) and line["bytes_out"] == size


async def test_refusals_of_a_rendered_request_are_named(front: Frontend) -> None:
    lines = Lines()
    async with (
        before(decode=[TokensWorker()]) as stack,
        app_of(stack, front, lines.log, keys=("secret",)) as url,
        aiohttp.ClientSession() as session,
    ):
        async with session.post(url + CHAT, json={}) as response:
            assert response.status == 401 and len(response.headers["x-request-id"]) == 32
            assert "total" in timings(response.headers)
        assert (await lines.one())["outcome"] == "invalid_api_key"
        lines.text, bearer = "", {"authorization": "Bearer secret"}
        async with session.post(url + CHAT, json={}, headers=bearer) as response:
            assert response.status == 400
        assert (await lines.one())["outcome"] == "missing_required_parameter"
        lines.text = ""
        async with session.get(url + "/v1/models", headers=bearer) as response:
            assert response.status == 200 and "server-timing" not in response.headers
        lines.log.flush()
        assert lines.text == ""


async def test_nothing_is_written_above_its_level_or_when_off() -> None:
    written: list[str] = []
    RequestLog(False, "text", written.append).over(RequestRecord())
    logging.getLogger("proxy.request_log").setLevel("WARNING")
    log = RequestLog(True, "text", written.append)
    log.over(RequestRecord())
    log.flush()
    assert written == []


@pytest.fixture
def _far_from_greenwich(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC-5")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("_far_from_greenwich")
async def test_json_tells_the_time_in_utc_and_text_on_the_clock_of_the_place() -> None:
    forms = (("json", "%Y-%m-%dT%H:%M:%S", UTC), ("text", "%Y-%m-%d %H:%M:%S", None))
    for form, shape, zone in forms:
        written: list[str] = []
        log = RequestLog(True, form, written.append)
        log.over(RequestRecord())
        log.flush()
        stamp = json.loads(written[0])["time"] if form == "json" else written[0]
        told = datetime.strptime(stamp[:19], shape).replace(tzinfo=zone).timestamp()
        assert abs(told - time.time()) < 60


async def test_lines_wait_until_there_are_many() -> None:
    written: list[str] = []
    log = RequestLog(True, "json", written.append)
    for _ in range(255):
        log.over(RequestRecord())
    assert not written
    log.over(RequestRecord())
    (lines,) = written
    assert lines.count("\n") == 256


async def test_a_client_cannot_forge_a_line() -> None:
    written: list[str] = []
    record = RequestRecord("/v1/chat/completions", "a status=500")
    record.model = "m\n2026-11-23 ERROR proxy: " + "x" * 1000
    log = RequestLog(True, "text", written.append)
    log.over(record)
    log.flush()
    (line,) = written
    assert line.count("\n") == 1 and len(line) < 600
    assert " INFO proxy: request " in line
    assert json.loads(line.partition("request ")[2])["id"] == "a status=500"


@pytest.mark.parametrize(
    ("pieces", "counts"),
    [
        ((b"", b'{"usage":{"prompt_tokens":7,"completion_tokens":3}}'), (7, 3, -1)),
        ((b'data: {"usage": {"prompt_tokens": 7}}\n\n', b"data: [DONE]\n\n"), (7, -1, -1)),
        ((b"", b'{"content":"\\"usage\\":{\\"prompt_tokens\\":9}"}'), (-1, -1, -1)),
        ((b'{"usage":{"prompt_tokens":1}}', b'{"usage":null}'), (1, -1, -1)),
        ((b"", b""), (-1, -1, -1)),
    ],
)
def test_tokens_are_read_from_the_end_of_an_answer(
    pieces: tuple[bytes, bytes], counts: tuple[int, int, int]
) -> None:
    record = RequestRecord()
    record.tail = pieces
    note_usage(record)
    found = record.prompt_tokens, record.completion_tokens, record.cached_tokens
    assert found == counts
