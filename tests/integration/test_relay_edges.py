"""The `openai` dialect where it meets its clients and its fleet."""

import asyncio
import json

import pytest

from protocol.json_size import MOST_VALUES
from tests.support.listening import run
from tests.support.relay_failures import FAILURES, drop, hang, saying
from tests.support.relay_workers import (
    CHAT,
    DONE,
    EVENTS,
    WHOLE,
    Asked,
    Worker,
    begin,
    chunk,
    data_url,
    pictures,
    relaying,
    text,
)
from tests.support.waiting import eventually


def test_a_clients_own_fault_is_told_in_the_workers_words() -> None:
    async def work() -> None:
        async with relaying("PPD") as relayed:
            fault = b'{"error": {"message": "too long", "code": 400, "param": "messages"}}'
            for worker in relayed.workers["prefill"]:
                worker.script = [saying(fault, status=400)]
            assert await relayed.post(text()) == (400, fault)
            assert sum(len(worker.asked) for worker in relayed.workers["prefill"]) == 1

    run(work)


def test_json_that_takes_long_to_decode_is_refused_before_that() -> None:
    """On routes that are relayed, and on those that are passed on."""
    heavy = b'{"messages":[{"role":"user","content":[' + b"[]," * MOST_VALUES + b"[]]}]}"

    async def work() -> None:
        async with relaying("PD") as relayed:
            for path in (CHAT, "/v1/embeddings"):
                headers = {"content-type": "application/json"}
                asked = relayed.session.post(relayed.url + path, data=heavy, headers=headers)
                async with asked as response:
                    assert response.status == 413
                    message = (await response.json())["error"]["message"]
                    assert f"more than {MOST_VALUES} objects" in message
            # A large one that is sane is parsed beside the event loop, and goes on as it came.
            assert (await relayed.post(text(user="well, " * 400_000)))[0] == 200
            (decode,) = relayed.workers["decode"]
            assert len(decode.asked) == 1 and relayed.in_flight == 0

    run(work)


def test_kv_that_decode_did_not_take_is_given_back() -> None:
    async def work() -> None:
        async with relaying("PD", "--max-retries", "0") as relayed:
            relayed.workers["decode"][0].script = [drop]
            status, answer = await relayed.post(text())
            assert status == 502 and json.loads(answer)["error"]["code"] == "upstream_error"
            await eventually(lambda: relayed.workers["prefill"][0].aborted == ["held"])

    run(work)


def test_a_breaker_keeps_a_failing_worker_out() -> None:
    async def work() -> None:
        flags = ("--breaker-failures", "2", "--breaker-cooldown", "60", "--max-retries", "0")
        async with relaying("D", *flags) as relayed:
            (decode,) = relayed.workers["decode"]
            decode.script = [FAILURES["500"]] * 2
            assert [(await relayed.post(text()))[0] for _ in range(2)] == [502, 502]
            async with relayed.session.post(relayed.url + CHAT, json=text()) as response:
                assert response.status == 503 and int(response.headers["retry-after"]) >= 1
            assert len(decode.asked) == 2
            assert relayed.metric("instance_breaker_open") == 1
            relayed.relay._fleet.decode[0].breaker.open_until = 0.0
            assert [(await relayed.post(text()))[0] for _ in range(2)] == [200, 200]
            assert relayed.metric("instance_breaker_open") == 0

    run(work)


def test_a_refused_connection_keeps_what_prefill_has_done() -> None:
    async def work() -> None:
        async with relaying("PDD") as relayed:
            fleet = relayed.relay._fleet
            fleet.decode[0].url = "http://127.0.0.1:1"
            for _ in range(4):
                assert (await relayed.post(text()))[0] == 200
            assert len(relayed.workers["prefill"][0].asked) == 4
            assert relayed.metric("upstream_failures_total") >= 1

    run(work)


def test_a_full_proxy_says_so_at_once() -> None:
    async def work() -> None:
        async with relaying("D", "--max-in-flight", "1") as relayed:
            (decode,) = relayed.workers["decode"]
            decode.script = [hang]
            first = asyncio.create_task(relayed.post(text()))
            await eventually(lambda: bool(decode.asked))
            body = json.dumps(pictures(data_url("A"))).encode()
            async with relayed.session.post(relayed.url + CHAT, data=body) as response:
                assert response.status == 503 and response.headers["retry-after"] == "1"
                assert (await response.json())["error"]["code"] == "unavailable"
            first.cancel()
            await eventually(lambda: relayed.in_flight == 0)
            assert (await relayed.post(text()))[0] == 200

    run(work)


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"{", 400), (b"[1]", 400), (b'{"stream": 3}', 400), (b"x" * 3_000_000, 413)],
)
def test_bad_requests(body: bytes, status: int) -> None:
    async def work() -> None:
        async with relaying("D", "--max-body-bytes", "2000000") as relayed:
            got, answer = await relayed.post(body)
            assert got == status and json.loads(answer)["error"]["message"]
            assert not relayed.workers["decode"][0].asked
            got, _ = await relayed.post(text(), {"x-request-timeout": "never"})
            assert got == 400

    run(work)


def test_one_connection_for_relayed_and_other_routes() -> None:
    async def work() -> None:
        async with relaying("D") as relayed:
            host, port = relayed.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))

            async def ask(*pieces: bytes) -> tuple[bytes, bytes]:
                for piece in pieces:
                    writer.write(piece)
                    await asyncio.sleep(0.01)
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
                return head.partition(b"\r\n")[0], await reader.readexactly(int(length))

            data = json.dumps(text()).encode()
            head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n"
            head %= len(data)
            line, answer = await ask(head + b"\r\n" + data)
            assert line.endswith(b"200 OK") and json.loads(answer) == WHOLE
            line, answer = await ask(b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n")
            assert line.endswith(b"200 OK") and b"version" in answer
            line, answer = await ask(head[:9], head[9:] + b"\r\n", data[:5], data[5:])
            assert json.loads(answer) == WHOLE
            line, _ = await ask(b"POST /v1/x HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n")
            assert b"404" in line
            line, _ = await ask(b"POST /", b"v1/ch", b"at HTTP/1.1\r\nhost: x\r\n\r\n")
            assert b"404" in line
            writer.write(head + b"expect: 100-continue\r\n\r\n")
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            line, answer = await ask(data)
            assert json.loads(answer) == WHOLE
            writer.close()

    run(work)


def test_an_http_1_0_client_gets_a_stream_that_ends_with_the_connection() -> None:
    async def work() -> None:
        async with relaying("D") as relayed:
            host, port = relayed.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            data = json.dumps(text(stream=True)).encode()
            writer.write(
                b"POST /v1/chat/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n" % len(data)
            )
            writer.write(data)
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            assert b"chunked" not in head and body == b"".join(EVENTS) + DONE
            writer.close()

    run(work)


def test_an_error_that_says_nothing_readable_is_told_all_the_same() -> None:
    async def work() -> None:
        async with relaying("D", "--max-retries", "0") as relayed:
            (decode,) = relayed.workers["decode"]
            failures = [FAILURES[n] for n in FAILURES if n.startswith("an e")]
            decode.script = list(failures)
            for _ in failures:
                async with relayed.session.post(relayed.url + CHAT, json=text()) as response:
                    assert response.status in (502, 503)
                    assert (await response.json())["error"]["message"]
                    assert int(response.headers.get("retry-after", 0)) <= 3600

    run(work)


def test_a_worker_that_comes_back_has_a_clean_record() -> None:
    async def work() -> None:
        flags = ("--breaker-failures", "2", "--breaker-cooldown", "60", "--max-retries", "0")
        async with relaying("D", *flags) as relayed:
            (decode,) = relayed.workers["decode"]
            decode.script = [FAILURES["500"]] * 2
            assert [(await relayed.post(text()))[0] for _ in range(3)] == [502, 502, 503]
            fleet = relayed.relay._fleet
            fleet.remove(fleet.decode[0])
            fleet.add(decode.url, "decode")
            assert (await relayed.post(text()))[0] == 200
            assert relayed.metric("instance_breaker_open") == 0

    run(work)


def test_workers_that_have_left_are_forgotten() -> None:
    async def work() -> None:
        async with relaying("DD") as relayed:
            fleet, pools = relayed.gateway.fleet, relayed.gateway.pools._pools
            for _ in range(4):
                assert (await relayed.post(text()))[0] == 200
            gone = fleet.decode[0]
            fleet.remove(gone)
            async with relaying("D") as other:
                fleet.add(other.workers["decode"][0].url, "decode")
                for _ in range(4):
                    assert (await relayed.post(text()))[0] == 200
                assert set(pools) == {instance.url for instance in fleet.decode}
                worker = next(w for w in relayed.workers["decode"] if w.url == gone.url)
                await eventually(lambda: worker.closed == worker.connections)

    run(work)


@pytest.mark.parametrize("topology", ["DD", "PPD", "EED"])
@pytest.mark.parametrize("state", ["draining", "suspect"])
def test_workers_that_drain_or_are_in_doubt_are_passed_over(topology: str, state: str) -> None:
    async def work() -> None:
        async with relaying(topology) as relayed:
            role = {"D": "decode", "P": "prefill", "E": "encode"}[topology[0]]
            first, second = relayed.workers[role]
            for instance in relayed.relay._fleet.all():
                if instance.url == first.url:
                    setattr(instance, state, True)
            for name in "ABCDEFGH":
                assert (await relayed.post(pictures(data_url(name))))[0] == 200
            assert (len(first.asked), len(second.asked)) == (0, 8)
            for instance in relayed.relay._fleet.all():
                setattr(instance, state, True)
            expected = 503 if state == "draining" else 200
            assert (await relayed.post(text()))[0] == expected

    run(work)


def test_a_client_that_does_not_read_holds_nothing_past_its_deadline() -> None:
    async def flood(worker: Worker, asked: Asked, writer: asyncio.StreamWriter) -> None:
        await begin(writer)
        while True:
            await chunk(writer, b'data: {"choices":[],"x":"%b"}\n\n' % (b"x" * 65536))

    async def work() -> None:
        async with relaying("D") as relayed:
            (decode,) = relayed.workers["decode"]
            decode.script = [flood]
            headers = {"x-request-timeout": "0.3"}
            response = await relayed.session.post(
                relayed.url + CHAT, json=text(stream=True), headers=headers
            )
            await eventually(lambda: relayed.in_flight == 0 and decode.left == 1)
            response.close()

    run(work)


def test_a_body_nested_almost_too_deep_is_no_internal_error() -> None:
    async def work() -> None:
        async with relaying("PD") as relayed:
            for depth in range(900, 1000, 3):
                nested = b"[" * depth + b"]" * depth
                status, _ = await relayed.post(b'{"messages": [], "x": %b}' % nested)
                assert status in (200, 400)

    run(work)
