"""The `openai` dialect on real sockets, before workers that follow a script."""

import asyncio
import json
from typing import Any

import pytest

from tests.support.listening import run
from tests.support.relay_failures import saying, streaming
from tests.support.relay_workers import (
    CHAT,
    DONE,
    EVENTS,
    HANDLES,
    WHOLE,
    Asked,
    Worker,
    data_url,
    good,
    pictures,
    relaying,
    text,
)


@pytest.mark.parametrize("topology", ["D", "PD", "ED", "EPD"])
@pytest.mark.parametrize("stream", [False, True])
def test_answers_come_through_byte_for_byte(topology: str, stream: bool) -> None:
    async def work() -> None:
        async with relaying(topology) as relayed:
            for body in (text(stream=stream), pictures(data_url("A"), stream=stream)):
                status, answer = await relayed.post(body)
                assert status == 200
                expected = b"".join(EVENTS) + DONE if stream else json.dumps(WHOLE).encode()
                assert answer == expected
            decode = relayed.workers["decode"][0].asked
            assert [asked.body["stream"] for asked in decode] == [stream, stream]
            handed = HANDLES if "P" in topology else None
            assert [asked.body.get("kv_transfer_params") for asked in decode] == [handed] * 2
            part = decode[1].body["messages"][0]["content"][0]
            assert part["type"] == ("image_embeds" if "E" in topology else "image_url")
            assert all(worker.left == 0 for worker in relayed.all())
            assert relayed.in_flight == 0

    run(work)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("told", "shown"), [(3, 3), (0, 0), (None, 9)])
def test_clients_are_told_what_prefill_found_cached(
    told: int | None, shown: int, stream: bool
) -> None:
    """For decode, all that comes from prefill was cached; asked where prefill is silent."""

    def counting(count: int | None) -> dict[str, Any]:
        details = None if count is None else {"cached_tokens": count}
        return {"usage": {"prompt_tokens": 9, "prompt_tokens_details": details}}

    async def work() -> None:
        async with relaying("PD") as relayed:
            first = json.dumps({**WHOLE, "kv_transfer_params": HANDLES, **counting(told)})
            relayed.workers["prefill"][0].script = [saying(first.encode())]
            said = json.dumps({**WHOLE, **counting(9)}).encode()
            last = b"data: %b\n\n" % said
            relayed.workers["decode"][0].script = [
                streaming(EVENTS[0], last, DONE, end="end") if stream else saying(said)
            ]
            body = text(stream=stream, stream_options={"include_usage": True}) if stream else text()
            _, answer = await relayed.post(body)
            wanted = json.dumps({**WHOLE, **counting(shown)}).encode()
            whole = EVENTS[0] + b"data: %b\n\n" % wanted + DONE if stream else wanted
            assert answer.replace(b" ", b"") == whole.replace(b" ", b"")

    run(work)


def test_what_each_stage_is_sent() -> None:
    async def work() -> None:
        async with relaying("EPD") as relayed:
            trace = {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01", "tracestate": "vendor=1"}
            headers = {"authorization": "Bearer key", "x-request-id": "me", "cookie": "private"}
            headers |= trace
            async with relayed.session.post(
                relayed.url + CHAT, json=pictures(data_url("A")), headers=headers
            ) as response:
                assert response.headers["x-request-id"] == "me"
            for worker in relayed.all():
                (asked,) = worker.asked
                assert asked.path == CHAT
                assert asked.headers["authorization"] == "bearer key"
                assert asked.headers["x-request-id"].startswith("me")
                assert "cookie" not in asked.headers
                assert {name: asked.headers[name] for name in trace} == trace
            (prefill,) = relayed.workers["prefill"][0].asked
            assert prefill.body["max_tokens"] == 1 and prefill.body["stream"] is False
            assert prefill.body["kv_transfer_params"]["do_remote_decode"] is True
            (entry,) = prefill.body["ec_transfer_params"].values()
            assert entry["item_indices"] == [0]

    run(work)


@pytest.mark.parametrize(
    ("given", "sent"), [(None, "bearer ours"), ("", "bearer ours"), ("Bearer own", "bearer own")]
)
@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/tokenize"])
def test_workers_behind_a_key(path: str, given: str | None, sent: str) -> None:
    async def work() -> None:
        async with relaying("PD", "--worker-api-key", "ours") as relayed:
            headers = {} if given is None else {"authorization": given}
            method = "GET" if path == "/v1/models" else "POST"
            body = None if method == "GET" else json.dumps(text(prompt="x"))
            call = relayed.session.request(method, relayed.url + path, data=body, headers=headers)
            async with call as response:
                assert response.status == 200
            workers = relayed.all() if path == CHAT else relayed.workers["decode"]
            keys = [asked.headers["authorization"] for w in workers for asked in w.asked]
            assert keys == [sent] * len(workers)

    run(work)


def test_text_completions_are_relayed_without_encoders() -> None:
    async def work() -> None:
        async with relaying("EPD") as relayed:
            status, answer = await relayed.post({"prompt": "a"}, path="/v1/completions")
            assert (status, json.loads(answer)) == (200, WHOLE)
            assert [len(worker.asked) for worker in relayed.all()] == [0, 1, 1]
            assert relayed.workers["prefill"][0].asked[0].path == "/v1/completions"

    run(work)


@pytest.mark.parametrize("count", [1, 8])
def test_media_bytes_go_upstream_once(count: int) -> None:
    async def work() -> None:
        async with relaying("EEPPDD") as relayed:
            body = pictures(*(data_url("A" * n) for n in range(count)))
            sent = len(json.dumps(body))
            status, _ = await relayed.post(body)
            assert status == 200
            received = sum(asked.size for worker in relayed.all() for asked in worker.asked)
            assert received <= 1.1 * sent
            assert relayed.metric("upstream_bytes_total") == received
            encodes = sum(len(worker.asked) for worker in relayed.workers["encode"])
            assert encodes == count

    run(work)


def test_a_picture_asked_for_at_the_same_time_is_encoded_once() -> None:
    async def work() -> None:
        async with relaying("EEPD") as relayed:
            for worker in relayed.workers["encode"]:
                worker.script = [slow]
            body = pictures(data_url("A"), data_url("A"), data_url("B"))
            answers = await asyncio.gather(*(relayed.post(body) for _ in range(4)))
            assert {status for status, _ in answers} == {200}
            assert sum(len(worker.asked) for worker in relayed.workers["encode"]) == 2
            entries = relayed.workers["decode"][0].asked[0].body["ec_transfer_params"]
            assert sorted(entry["item_indices"] for entry in entries.values()) == [[0, 1, 2]] or (
                sorted(entry["item_indices"] for entry in entries.values()) == [[0, 1], [2]]
            )

    run(work)


async def slow(worker: Worker, asked: Asked, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(0.1)
    await good(worker, asked, writer)


def test_encode_calls_are_bounded() -> None:
    async def work() -> None:
        async with relaying("EPD", "--encode-at-once", "2") as relayed:
            (encoder,) = relayed.workers["encode"]
            encoder.script = [slow] * 6
            await relayed.post(pictures(*(data_url("A" * n) for n in range(6))))
            assert len(encoder.asked) == 6
            assert encoder.connections == 2

    run(work)


def test_a_worker_that_takes_no_references_gets_the_media() -> None:
    async def work() -> None:
        async with relaying("EPD") as relayed:
            refusal = saying(b'{"error":{"message":"unknown part image_embeds"}}', status=400)
            (prefill,) = relayed.workers["prefill"]
            prefill.script = [refusal]
            for _ in range(2):
                status, _ = await relayed.post(pictures(data_url("A")))
                assert status == 200
            kinds = [a.body["messages"][0]["content"][0]["type"] for a in prefill.asked]
            assert kinds == ["image_embeds", "image_url", "image_url"]
            assert all("hash" in str(a.body["ec_transfer_params"]) for a in prefill.asked)

    run(work)


def test_media_go_to_all_stages_if_told_to() -> None:
    async def work() -> None:
        async with relaying("EPD", "--send-media") as relayed:
            status, _ = await relayed.post(pictures(data_url("A")))
            assert status == 200
            for role in ("prefill", "decode"):
                (asked,) = relayed.workers[role][0].asked
                (part,) = asked.body["messages"][0]["content"]
                assert part["type"] == "image_url"
                assert [part["uuid"]] == list(asked.body["ec_transfer_params"])

    run(work)
