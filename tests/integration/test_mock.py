"""Mock workers as processes: behind the real proxy, behind vLLM's handshake, and when they fail."""

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from services.mock.tokens import Vocabulary
from tests.conftest import ModelDir
from tests.conversations import asking, picture
from tests.integration.clients import body_of, complete
from tests.stack import Process, Stack, call, idle, proxy, running

CHAT, GENERATE = "/v1/chat/completions", "/inference/v1/generate"
FAST = ("--speed", "20", "--log-level", "warning")
HAND_OVER = {"do_remote_decode": True, "do_remote_prefill": False}


def mock(stack: Stack, role: str, *flags: str) -> Process:
    process = stack.start("services.mock", "--role", role, *FAST, *flags)
    process.wait_ready()
    return process


@dataclass
class Fleet:
    stack: Stack
    encode: Process
    prefill: Process
    decode: Process
    single: Process

    @property
    def workers(self) -> tuple[Process, ...]:
        return self.encode, self.prefill, self.decode, self.single


@pytest.fixture(scope="module")
def fleet(model_dir: ModelDir) -> Iterator[Fleet]:
    """One worker of each role, and one that does it all."""
    with running(model_dir("qwen2_5_vl")) as stack:
        encode = mock(stack, "encode")
        asks = ("--encode-servers-urls", encode.url)
        workers = [mock(stack, role, *asks) for role in ("prefill", "decode", "pdfusion")]
        yield Fleet(stack, encode, *workers)
        for worker in (encode, *workers):
            idle(worker)


@pytest.fixture(scope="module")
def proxies(fleet: Fleet) -> dict[str, Process]:
    encode, prefill, decode = [fleet.encode], [fleet.prefill], [fleet.decode]
    return {
        "E+P+D": proxy(fleet.stack, encode, prefill, decode),
        "E+PD": proxy(fleet.stack, encode, [], decode),
        "P+D": proxy(fleet.stack, [], prefill, decode),
        "one": proxy(fleet.stack, [], [], [fleet.single]),
    }


def counters(process: Process) -> dict[str, float]:
    found: dict[str, float] = call(f"{process.url}/integrity")[1]["counters"]
    return found


@pytest.mark.parametrize("params", [{}, {"temperature": 1, "seed": 7, "n": 2}])
def test_text_gets_the_same_tokens_in_every_topology(
    proxies: dict[str, Process], fleet: Fleet, params: dict[str, Any]
) -> None:
    case = asking(f"Tell me about {sorted(params)}")
    before = counters(fleet.decode)["kv_fetched"]
    answers = {name: complete(server, case, max_tokens=12, **params)["choices"]
               for name, server in proxies.items()}  # fmt: skip
    tokens = {name: [c["token_ids"] for c in choices] for name, choices in answers.items()}
    assert all(found == tokens["one"] for found in tokens.values()), tokens
    assert len({tuple(choice) for choice in tokens["one"]}) == params.get("n", 1)
    assert all(len(choice) == 12 for choice in tokens["one"])
    assert counters(fleet.decode)["kv_fetched"] == before + 2


def test_pictures_get_the_same_tokens_and_are_encoded_once(
    proxies: dict[str, Process], fleet: Fleet
) -> None:
    case = asking("Compare", picture(71), "with", picture(72, 320, 200))
    before = counters(fleet.encode)["mm_encoded"]
    answers = [
        complete(proxies[name], case, max_tokens=9)["choices"][0]["token_ids"]
        for name in ("E+P+D", "E+PD", "E+P+D")
    ]
    assert answers[0] == answers[1] == answers[2] and len(answers[0]) == 9
    assert counters(fleet.encode)["mm_encoded"] == before + 2
    other = complete(proxies["E+PD"], asking("Compare", picture(73), "with", picture(72, 320, 200)),
                     max_tokens=9)["choices"][0]["token_ids"]  # fmt: skip
    assert other != answers[0]


def test_a_repeated_prompt_is_reused_by_prefill(proxies: dict[str, Process]) -> None:
    case = asking("A prompt that is long enough to fill some blocks. " * 4)
    usages = [complete(proxies["E+P+D"], case, max_tokens=4)["usage"] for _ in range(2)]
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
    assert cached[0] < cached[1] <= usages[1]["prompt_tokens"]


def test_many_at_once_are_batched_and_all_right(proxies: dict[str, Process], fleet: Fleet) -> None:
    cases = [asking(f"Question number {number}") for number in range(24)]
    before = counters(fleet.decode)["steps"]
    with ThreadPoolExecutor(24) as pool:
        whole = list(pool.map(lambda c: complete(proxies["E+P+D"], c, max_tokens=20), cases))
    steps = counters(fleet.decode)["steps"] - before
    assert steps < 24 * 19
    for case, answer in zip(cases, whole, strict=True):
        alone = complete(proxies["one"], case, max_tokens=20)
        assert answer["choices"][0]["token_ids"] == alone["choices"][0]["token_ids"]


class Stream:
    """A streamed request that can be left at any moment."""

    def __init__(self, url: str, path: str, body: Any, timeout_s: float = 20.0) -> None:
        host, port = url.removeprefix("http://").split(":")
        self.connection = http.client.HTTPConnection(host, int(port), timeout=timeout_s)
        self.connection.request("POST", path, json.dumps(body))
        self.response = self.connection.getresponse()

    def events(self) -> Iterator[bytes]:
        """The data of every event until the stream ends."""
        while line := self.response.readline():
            if line.startswith(b"data: "):
                yield line[6:].rstrip(b"\n")

    def leave(self) -> None:
        self.response.close()
        self.connection.close()


@pytest.mark.parametrize("name", ["E+P+D", "E+PD"])
def test_a_client_that_leaves_frees_every_stage(
    proxies: dict[str, Process], fleet: Fleet, name: str
) -> None:
    case = body_of(asking(picture(75), f"Long {name}"), max_tokens=1500, stream=True)
    stream = Stream(proxies[name].url, CHAT, case)
    for _ in range(4):
        next(stream.events())
    assert call(f"{fleet.decode.url}/load")[1]["server_load"] == 1
    stream.leave()
    for worker in fleet.workers:
        idle(worker, timeout_s=2.0)


def generate_body(prompt: list[int], most: int = 8, **more: Any) -> dict[str, Any]:
    sampling = {"max_tokens": most, "temperature": 0}
    return {"token_ids": prompt, "sampling_params": sampling, **more}


def ask(process: Process, path: str, body: Any) -> Any:
    status, answer = call(process.url + path, body)
    assert status == 200, answer
    return answer


def test_vllms_handshake_with_references_instead_of_media(fleet: Fleet) -> None:
    """What an EPD proxy does: every item to the encoder, then handles and metadata only."""
    url = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    text = {"type": "text", "text": "What is this?"}
    ask_body = {"max_tokens": 10, "temperature": 0, "return_token_ids": True}

    def said(*parts: Any, **more: Any) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": list(parts)}], **ask_body, **more}

    expected = ask(fleet.single, CHAT, said(url, text))["choices"][0]["token_ids"]
    entries = ask(fleet.encode, CHAT, said(url, max_tokens=1))["ec_transfer_params"]
    ((name, entry),) = entries.items()
    assert entry["modality"] == "image" and entry["item_indices"] == [0]
    reference = {"type": "image_embeds", "image_embeds": entry["metadata"], "uuid": name}
    body = said(reference, text, ec_transfer_params=entries)
    first = ask(fleet.prefill, CHAT, {**body, "max_tokens": 1, "kv_transfer_params": HAND_OVER})
    params = first["kv_transfer_params"]
    assert params["remote_num_tokens"] == first["usage"]["prompt_tokens"]
    answer = ask(fleet.decode, CHAT, {**body, "kv_transfer_params": params})
    assert answer["choices"][0]["token_ids"] == expected
    assert first["choices"][0]["token_ids"] == expected[:1]
    stream = Stream(fleet.decode.url, CHAT, {
        **body, "stream": True, "stream_options": {"include_usage": True},
    })  # fmt: skip
    *events, done = list(stream.events())
    chunks = [json.loads(event) for event in events]
    assert done == b"[DONE]" and chunks[-1]["usage"]["completion_tokens"] == 10
    deltas = [choice for chunk in chunks for choice in chunk["choices"]]
    assert [t for delta in deltas for t in delta.get("token_ids", ())] == expected
    assert "".join(d["delta"].get("content") or "" for d in deltas) == bytes(expected).decode()
    assert [d["finish_reason"] for d in deltas if d["finish_reason"]] == ["length"]
    stream.leave()


def test_completions_take_texts_and_ids(fleet: Fleet) -> None:
    body = {"prompt": ["Hello", "you"], "max_tokens": 5, "return_token_ids": True}
    answer = ask(fleet.decode, "/v1/completions", body)
    expected = [Vocabulary().answer(list(text), length=5) for text in (b"Hello", b"you")]
    assert [choice["token_ids"] for choice in answer["choices"]] == expected
    assert answer["usage"] == {**answer["usage"], "prompt_tokens": 8, "completion_tokens": 10}
    (card,) = call(f"{fleet.decode.url}/v1/models")[1]["data"]
    assert card["id"] == "tiny" and card["root"]


def test_emitted_tokens_are_continued_and_counted(fleet: Fleet) -> None:
    expected = Vocabulary().answer([5, 6], length=8)
    body = generate_body([5, 6], emitted={"0": expected[:3]})
    answer = ask(fleet.decode, GENERATE, body)
    assert answer["choices"][0]["token_ids"] == expected[3:]
    assert answer["usage"]["completion_tokens"] == 8


def test_a_deadline_ends_a_request_with_504(fleet: Fleet) -> None:
    status, answer = call(fleet.decode.url + GENERATE, generate_body([1], 9999, deadline_s=0.05))
    assert status == 504 and answer["error"]["code"] == "deadline_exceeded"


def test_a_dead_prefill_worker_costs_decode_a_computation(fleet: Fleet) -> None:
    prefill = mock(fleet.stack, "prefill")
    prompt = list(range(60))
    handle = ask(prefill, GENERATE, generate_body(prompt, kv_transfer_params=HAND_OVER))
    assert counters(prefill)["steps"] == 1
    prefill.kill()
    before = counters(fleet.decode)
    params = handle["kv_transfer_params"]
    answer = ask(fleet.decode, GENERATE, generate_body(prompt, kv_transfer_params=params))
    assert answer["choices"][0]["token_ids"] == Vocabulary().answer(prompt, length=8)
    after = counters(fleet.decode)
    assert after["kv_failed"] == before["kv_failed"] + 1
    assert answer["usage"]["cached_tokens"] == 0


def test_a_lease_that_lapses_is_noticed(fleet: Fleet) -> None:
    prefill = mock(fleet.stack, "prefill", "--kv-lease", "0.2")
    prompt = list(range(100, 160))
    handle = ask(prefill, GENERATE, generate_body(prompt, kv_transfer_params=HAND_OVER))
    report = idle(prefill, timeout_s=2.0)
    assert report["counters"]["kv_expired"] == 1
    before = counters(fleet.decode)["kv_failed"]
    params = handle["kv_transfer_params"]
    answer = ask(fleet.decode, GENERATE, generate_body(prompt, kv_transfer_params=params))
    assert answer["choices"][0]["token_ids"] == Vocabulary().answer(prompt, length=8)
    assert counters(fleet.decode)["kv_failed"] == before + 1


@pytest.fixture
def faulty(fleet: Fleet) -> Iterator[Process]:
    """The decode worker, right again afterwards."""
    yield fleet.decode
    host = fleet.decode.url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=5)
    connection.request("DELETE", "/faults")
    assert connection.getresponse().status == 200


def set_fault(process: Process, kind: str, **more: Any) -> None:
    ask(process, "/faults", {"kind": kind, **more})


def test_errors_are_answered_and_end(faulty: Process) -> None:
    for status in (500, 503):
        set_fault(faulty, "error", status=status, count=1)
        found, answer = call(faulty.url + GENERATE, generate_body([1]))
        assert found == status and answer["error"]["message"]
    assert call(faulty.url + GENERATE, generate_body([1]))[0] == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_hang_says_nothing_and_leaves_nothing(faulty: Process, stream: bool) -> None:
    set_fault(faulty, "hang", count=1)
    with pytest.raises(TimeoutError):
        Stream(faulty.url, GENERATE, generate_body([1], stream=stream), timeout_s=0.5)
    idle(faulty)


def test_a_stream_hangs_after_its_tokens(faulty: Process) -> None:
    set_fault(faulty, "hang", count=1, after_tokens=3)
    stream = Stream(faulty.url, GENERATE, generate_body([1], 500, stream=True), timeout_s=1.0)
    found: list[int] = []
    with pytest.raises(TimeoutError):
        for event in stream.events():
            found += json.loads(event)["choices"][0]["token_ids"]
    assert found == Vocabulary().answer([1], length=3)
    stream.leave()
    idle(faulty)


def test_a_cut_connection_is_cut(faulty: Process) -> None:
    set_fault(faulty, "drop", count=1)
    with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
        Stream(faulty.url, GENERATE, generate_body([1]))
    set_fault(faulty, "drop", count=1, after_tokens=3)
    stream = Stream(faulty.url, GENERATE, generate_body([1], 500, stream=True))
    count = 0
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        for _ in stream.events():
            count += 1
        stream.response.read()
        raise ConnectionError("the stream ended early")
    assert count <= 3
    idle(faulty)


@pytest.mark.parametrize("kind", ["garbage", "half_json", "content_type"])
def test_answers_that_are_no_answers(faulty: Process, kind: str) -> None:
    set_fault(faulty, kind, count=1)
    whole = Stream(faulty.url, GENERATE, generate_body([1]))
    body = whole.response.read()
    with pytest.raises(ValueError):
        json.loads(body)
    is_html = whole.response.getheader("content-type", "").startswith("text/html")
    assert whole.response.status == 200 and is_html == (kind == "content_type")
    set_fault(faulty, kind, count=1)
    stream = Stream(faulty.url, GENERATE, generate_body([1], stream=True))
    first = stream.response.readline()
    with pytest.raises(ValueError):
        json.loads(first.removeprefix(b"data: "))
    stream.leave()
    idle(faulty)


def test_streams_without_an_end(faulty: Process) -> None:
    set_fault(faulty, "no_done", count=1)
    events = list(Stream(faulty.url, GENERATE, generate_body([1], stream=True)).events())
    assert b"[DONE]" not in events and len(events) == 9
    set_fault(faulty, "no_end", count=1)
    stream = Stream(faulty.url, GENERATE, generate_body([1], stream=True), timeout_s=1.0)
    count = 0
    with pytest.raises(TimeoutError):
        for event in stream.events():
            count += event != b"[DONE]"
    assert count == 9
    stream.leave()


def test_any_route_can_fail(faulty: Process) -> None:
    set_fault(faulty, "error", status=503, paths=["/health"])
    set_fault(faulty, "half_json", paths=["/server_info"])
    assert call(f"{faulty.url}/health")[0] == 503
    with pytest.raises(ValueError):
        call(f"{faulty.url}/server_info")
    ask(faulty, GENERATE, generate_body([1]))


@pytest.mark.parametrize("stream", [False, True])
def test_a_wrong_count_is_wrong(faulty: Process, stream: bool) -> None:
    set_fault(faulty, "wrong_count", count=1)
    body = generate_body([1], 4, stream=stream)
    if stream:
        events = [
            json.loads(e) for e in Stream(faulty.url, GENERATE, body).events() if e[:1] == b"{"
        ]
        tokens = [t for e in events for c in e["choices"] for t in c["token_ids"]]
    else:
        tokens = ask(faulty, GENERATE, body)["choices"][0]["token_ids"]
    assert len(tokens) > 4
    assert len(ask(faulty, GENERATE, generate_body([1], 4))["choices"][0]["token_ids"]) == 4


def test_a_wrong_handle_names_another_request(fleet: Fleet) -> None:
    """Decode, given it, goes on with the other prompt: that is how it can be found out."""
    one, two = list(range(200, 240)), list(range(300, 340))
    other = ask(fleet.prefill, GENERATE, generate_body(one, kv_transfer_params=HAND_OVER))
    set_fault(fleet.prefill, "wrong_handle", count=1)
    mine = ask(fleet.prefill, GENERATE, generate_body(two, kv_transfer_params=HAND_OVER))
    params = mine["kv_transfer_params"]
    assert params["remote_request_id"] == other["request_id"] != mine["request_id"]
    answer = ask(fleet.decode, GENERATE, generate_body(two, kv_transfer_params=params))
    assert answer["choices"][0]["token_ids"] == Vocabulary().answer(one, length=8)
    call(f"{fleet.prefill.url}/abort_requests", {"request_ids": [mine["request_id"]]})
    idle(fleet.prefill)


def test_slow_work_takes_longer_until_it_is_over(faulty: Process) -> None:
    def seconds() -> float:
        begun = time.monotonic()
        ask(faulty, GENERATE, generate_body([1], 21))
        return time.monotonic() - begun

    slowest = 20 * 10e-3  # 20 steps of 10 ms, 20 times as fast, 20 times as slow
    set_fault(faulty, "slow", factor=20, duration_s=0.5)
    assert seconds() >= slowest
    deadline = time.monotonic() + 10
    while seconds() >= slowest:
        assert time.monotonic() < deadline


def test_a_worker_that_refuses_comes_back(fleet: Fleet) -> None:
    worker = mock(fleet.stack, "decode")
    set_fault(worker, "refuse", duration_s=1.5)
    deadline = time.monotonic() + 10
    refused = False
    while time.monotonic() < deadline:
        try:
            call(f"{worker.url}/health", timeout_s=1)
            if refused:
                break
        except OSError:
            refused = True
        time.sleep(0.01)
    assert refused and call(worker.url + GENERATE, generate_body([1]))[0] == 200


def test_a_worker_that_dies_is_dead(fleet: Fleet) -> None:
    rule = '{"kind": "die", "after_tokens": 2}'
    worker = mock(fleet.stack, "decode", "--faults", rule)
    stream = Stream(worker.url, GENERATE, generate_body([1], 100, stream=True))
    with contextlib.suppress(http.client.IncompleteRead, ConnectionError):
        assert len(list(stream.events())) <= 2
    assert worker.process.wait(5) == 1


def test_bad_input_gets_a_clear_error(fleet: Fleet) -> None:
    cases: list[tuple[Process, str, Any, int, str | None]] = [
        (fleet.decode, GENERATE, b"{", 400, None),
        (fleet.decode, GENERATE, {"token_ids": "x"}, 400, "token_ids"),
        (fleet.decode, GENERATE, generate_body([]), 400, "token_ids"),
        (fleet.decode, GENERATE, generate_body([1], 10**6), 400, "token_ids"),
        (fleet.decode, GENERATE, generate_body([1], model="other"), 404, "model"),
        (fleet.decode, GENERATE, generate_body([1], kv_transfer_params={"do_remote_prefill": True}),
         400, "kv_transfer_params"),
        (fleet.decode, "/inference/v1/encode", {}, 404, None),
        (fleet.encode, GENERATE, generate_body([1]), 404, None),
        (fleet.encode, CHAT, {"messages": [{"role": "user", "content": "hi"}]}, 400, "messages"),
        (fleet.decode, CHAT, {"messages": []}, 400, "messages"),
        (fleet.decode, "/abort_requests", {"request_ids": 3}, 400, "request_ids"),
        (fleet.decode, "/faults", {"kind": "sing"}, 400, "faults"),
    ]  # fmt: skip
    for worker, path, body, status, param in cases:
        found, answer = call(worker.url + path, body)
        assert (found, answer["error"]["param"]) == (status, param), (path, body, answer)


def test_a_drained_worker_takes_no_more(fleet: Fleet) -> None:
    worker = mock(fleet.stack, "decode")
    assert call(f"{worker.url}/drain", b"")[0] == 200
    assert call(f"{worker.url}/ready")[0] == 503 and call(f"{worker.url}/health")[0] == 200
    assert call(worker.url + GENERATE, generate_body([1]))[0] == 503


def test_one_process_holds_many_workers(fleet: Fleet) -> None:
    flags = ("--role", "decode", "--count", "50", *FAST)
    process = fleet.stack.start("services.mock", *flags)
    process.wait_ready()
    deadline = time.monotonic() + 5
    while sum(" ready on " in line for line in process.log) < 50:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    urls = [line.split(" ready on ")[1].strip() for line in process.log if " ready on " in line]
    infos = [call(f"{url}/server_info")[1] for url in urls]
    assert len({info["instance_id"] for info in infos}) == len(set(urls)) == 50
    ask(process, GENERATE, generate_body([1]))
    loads = [call(f"{url}/integrity")[1]["counters"]["generation_tokens"] for url in urls]
    assert sorted(loads) == [0] * 49 + [8]
    assert process.stop() == 0


class _Master(BaseHTTPRequestHandler):
    """Remembers what it is told; knows nobody at the first heartbeat."""

    said: list[tuple[str, Any]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        beats = sum(path == "/heartbeat" for path, _ in self.said)
        self.said.append((self.path, body))
        answer = json.dumps({"known": self.path != "/heartbeat" or beats > 0}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        pass


def test_workers_register_report_and_leave(fleet: Fleet) -> None:
    said: list[tuple[str, Any]] = []
    handler = type("Handler", (_Master,), {"said": said})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        worker = mock(fleet.stack, "prefill", "--master-url", url, "--heartbeat-interval", "0.05")
        deadline = time.monotonic() + 10
        while sum(path == "/heartbeat" for path, _ in said) < 4:
            assert time.monotonic() < deadline, said
            time.sleep(0.01)
        assert worker.stop() == 0
        server.shutdown()
    assert [path for path, _ in said[:4]] == ["/register", "/heartbeat"] * 2
    info, beat = said[0][1], said[1][1]
    assert (info["role"], info["url"], info["model"]) == ("prefill", worker.url, "tiny")
    assert info["kv_endpoint"]["do_remote_prefill"] and info["events"][0]["topic"] == "kv-events"
    assert beat["load"]["free_blocks"] == 4096 and beat["generation"] == info["generation"]
    assert beat["load"]["rates"]["decode_base_ms"] == 0.5
    assert said[-1] == ("/deregister", {
        "instance_id": info["instance_id"], "generation": info["generation"],
    })  # fmt: skip
