"""Mock workers before masters: ours hear that they are there and how busy they are, RTP-LLM's ask
what runs, what has ended and which keys the cache holds."""

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from protocol.keys import block_keys, root_key
from protocol.kv_events import short_key
from services.mock.config import ROLES
from tests.support.mocks import CHAT, FAST, GENERATE, ask, generate_body, listening_master, mock
from tests.support.stack import Process, Stack, call, proxy, running
from tests.support.waiting import until

BLOCKS, SIZE, ROOM = 64, 16, 1024
SPELLINGS = [
    ("latest_cache_version", "latest_finished_version"),
    ("lastest_cache_version", "latest_finised_version"),
]
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running(Path("a-model")) as stack:
        yield stack


@pytest.fixture(scope="module")
def worker(stack: Stack) -> Process:
    return mock(stack, "decode", "--num-gpu-blocks-override", str(BLOCKS))


@pytest.fixture(scope="module")
def slow(stack: Stack) -> Process:
    """A step takes 20 ms."""
    pool = ("--num-gpu-blocks-override", str(BLOCKS))
    return mock(stack, "decode", *pool, "--decode-base-ms", "400")


def told(worker: Process, path: str, query: dict[str, Any], how: str = "json") -> Any:
    """A status, asked for by POST or by GET."""
    url = f"{worker.url}{path}"
    asked = call(url, query) if how == "json" else call(f"{url}?{urlencode(query)}")
    assert asked[0] == 200, asked[1]
    return asked[1]


def keys_of(prompt: list[int]) -> set[int]:
    root = root_key(model="a-model", revision="mock")
    return {short_key(key) for key in block_keys(prompt, SIZE, root)}


def cached(status: Any) -> set[int]:
    keys = status["cached_keys"]
    assert all(-(1 << 63) <= key < 1 << 63 for key in keys), "RTP-LLM's keys are signed"
    return {short_key(key) for key in keys}


@pytest.mark.parametrize("prefix", ["", "/rtp_llm"])
@pytest.mark.parametrize("names", SPELLINGS)
@pytest.mark.parametrize("how", ["json", "url"])
def test_each_route_tells_what_is_newer_than_a_cursor(
    worker: Process, prefix: str, names: tuple[str, str], how: str
) -> None:
    work, cache = f"{prefix}/worker_status", f"{prefix}/cache_status"

    def cursor(status: Any) -> dict[str, int]:
        return dict(zip(names, (status["cache_status"]["version"], status["version"]), strict=True))

    before = told(worker, work, {}, how)
    assert len(before["finished_task_list"]) == before["version"]
    start = before["cache_status"]["version"]
    prompt = list(range(start, start + 40))
    ask(worker, GENERATE, generate_body(prompt, request_id="before"))
    after = told(worker, work, cursor(before), how)
    assert after["version"] == before["version"] + 1
    (task,) = after["finished_task_list"]
    assert (task["request_id"], task["input_length"], task["iterate_count"]) == ("before", 40, 8)
    assert task["phase"] == "RUNNING" and task["end_time_ms"] > 0 and task["error_info"] == ""
    assert after["cache_status"]["version"] > start
    assert cached(after["cache_status"]) >= keys_of(prompt) > set()
    again = told(worker, work, cursor(after), how)
    assert again["finished_task_list"] == [] and again["version"] == after["version"]
    assert again["cache_status"] == {**after["cache_status"], "cached_keys": None}
    assert told(worker, cache, cursor(after), how) == again["cache_status"]
    assert told(worker, cache, cursor(before), how) == after["cache_status"]
    assert after["cache_status"]["available_kv_cache"] == BLOCKS * SIZE


def test_reused_tokens_failures_and_forgotten_keys_are_told(worker: Process) -> None:
    prompt = list(range(5000, 5000 + 3 * SIZE))
    ask(worker, GENERATE, generate_body(prompt))
    known = told(worker, "/worker_status", {})
    ask(worker, GENERATE, generate_body(prompt, request_id="reuses"))
    late = generate_body([1], 900, request_id="late", deadline_s=0.05)
    assert call(worker.url + GENERATE, late)[0] == 504
    cursor = {"latest_finished_version": known["version"]}
    reuses, failed = told(worker, "/worker_status", cursor)["finished_task_list"]
    assert (reuses["request_id"], reuses["prefix_length"]) == ("reuses", 2 * SIZE)
    assert failed["request_id"] == "late" and "deadline" in failed["error_info"]
    full = told(worker, "/cache_status", {})
    assert call(f"{worker.url}/reset_prefix_cache", b"")[0] == 200
    empty = told(worker, "/cache_status", {"latest_cache_version": full["version"]})
    assert empty["version"] > full["version"] and empty["cached_keys"] == []


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_is_told_while_it_runs_and_when_its_client_has_left(
    slow: Process, stream: bool
) -> None:
    known = {"latest_finished_version": told(slow, "/worker_status", {})["version"]}
    client = http.client.HTTPConnection(slow.url.removeprefix("http://"), timeout=20)
    body = generate_body([7] * 40, 700, request_id="long", stream=stream)
    client.request("POST", GENERATE, json.dumps(body))
    seen: list[Any] = []

    def runs() -> bool:
        seen.append(told(slow, "/worker_status", known))
        return any(task["iterate_count"] >= 3 for task in seen[-1]["running_task_info"])

    until(runs, seen)
    (task,), status = seen[-1]["running_task_info"], seen[-1]
    assert (task["request_id"], task["phase"], task["end_time_ms"]) == ("long", "RUNNING", -1)
    assert status["finished_task_list"] == []
    assert status["available_concurrency"] == ROOM - 1 and status["step_latency_ms"] > 0
    cache = status["cache_status"]
    assert 0 < cache["available_kv_cache"] < cache["total_kv_cache"] == BLOCKS * SIZE
    client.close()
    until(lambda: not told(slow, "/worker_status", {})["running_task_info"])
    after = told(slow, "/worker_status", known)
    (ended,) = after["finished_task_list"]
    assert (ended["request_id"], ended["error_info"]) == ("long", "the client has left")
    assert after["available_concurrency"] == ROOM


@pytest.mark.parametrize("role", ROLES)
def test_every_role_tells_what_it_is(stack: Stack, role: str) -> None:
    """An encoder has tasks but no KV; a worker that drains is not to be counted on."""
    worker = mock(stack, role)
    if role == "encode":
        ask(worker, CHAT, {"messages": [{"role": "user", "content": [PICTURE]}]})
    else:
        ask(worker, GENERATE, generate_body([1] * 20))
    status = told(worker, "/worker_status", {})
    port = int(worker.url.rpartition(":")[2])
    # One that may have any role decodes until a master says otherwise.
    assert status["role"] == {"encode": "vit", "any": "decode"}.get(role, role)
    assert (status["server_port"], status["grpc_proto_port"]) == (port, 0)
    assert len(status["finished_task_list"]) == 1 and status["iterate_count"] > 0
    assert status["finished_task_list"][0]["input_length"] == (64 if role == "encode" else 20)
    assert (status["cache_status"] is None) == (role == "encode")
    assert (told(worker, "/cache_status", {})["cached_keys"] is None) == (role == "encode")
    assert status["alive"] and call(f"{worker.url}/drain", b"")[0] == 200
    assert not told(worker, "/worker_status", {})["alive"]
    assert worker.stop() == 0


@pytest.mark.parametrize("path", ["/worker_status", "/rtp_llm/cache_status"])
@pytest.mark.parametrize(
    ("query", "body", "param"),
    [
        ("", b"{", None),
        ("", b"[3]", None),
        ("", b'{"latest_cache_version": []}', "latest_cache_version"),
        ("", b'{"latest_finised_version": "new"}', "latest_finished_version"),
        ("?lastest_cache_version=new", None, "latest_cache_version"),
        ("?latest_finished_version=1.5", b"{}", "latest_finished_version"),
    ],
)
def test_a_bad_cursor_is_refused_by_name(
    worker: Process, path: str, query: str, body: bytes | None, param: str | None
) -> None:
    status, answer = call(f"{worker.url}{path}{query}", body)
    assert (status, answer["error"]["param"]) == (400, param), answer


def test_one_process_holds_many_workers(stack: Stack) -> None:
    flags = ("--role", "decode", "--count", "50", "--max-num-seqs", "7", *FAST)
    process = stack.start("services.mock", *flags)
    process.wait_ready()
    until(lambda: sum(" ready on " in line for line in process.log) == 50)
    urls = [line.split(" ready on ")[1].strip() for line in process.log if " ready on " in line]
    infos = [call(f"{url}/server_info")[1] for url in urls]
    assert len({info["instance_id"] for info in infos}) == len(set(urls)) == 50
    assert {info["max_num_seqs"] for info in infos} == {7}
    ask(process, GENERATE, generate_body([1]))
    loads = [call(f"{url}/integrity")[1]["counters"]["generation_tokens"] for url in urls]
    assert sorted(loads) == [0] * 49 + [8]
    assert process.stop() == 0


def test_workers_register_report_and_leave(stack: Stack) -> None:
    with listening_master() as (url, said):
        worker = mock(stack, "prefill", "--master-url", url, "--heartbeat-interval", "0.05")
        until(lambda: sum(path == "/heartbeat" for path, _ in said) >= 4, said)
        assert worker.stop() == 0
    assert [path for path, _ in said[:4]] == ["/register", "/heartbeat"] * 2
    info, beat = said[0][1], said[1][1]
    assert (info["role"], info["url"], info["model"]) == ("prefill", worker.url, "tiny")
    assert info["kv_endpoint"]["do_remote_prefill"] and info["events"][0]["topic"] == "kv-events"
    assert beat["load"]["free_blocks"] == 4096 and beat["generation"] == info["generation"]
    assert beat["load"]["rates"]["decode_base_ms"] == 0.5
    assert said[-1] == ("/deregister", {
        "instance_id": info["instance_id"], "generation": info["generation"],
    })  # fmt: skip


def test_a_proxy_passes_on_what_its_worker_says(stack: Stack) -> None:
    worker = mock(stack, "decode", "--num-gpu-blocks-override", str(BLOCKS))
    front = proxy(stack, [], [], [worker], "--dialect", "openai", "--max-in-flight", "9")
    for prefix in ("", "/rtp_llm"):
        status = told(front, f"{prefix}/worker_status", {"latest_finised_version": 10**9})
        assert (status["role"], status["finished_task_list"]) == ("decode", [])
        assert (status["frontend_available_concurrency"], status["alive"]) == (9, True)
        cache = told(front, f"{prefix}/cache_status", {}, "url")
        assert cache["total_kv_cache"] == BLOCKS * SIZE and cache["cached_keys"] is not None
    named = call(f"{front.url}/worker_status?worker={worker.url}")
    assert named[0] == 200
    status, answer = call(f"{front.url}/worker_status?worker=http://other:1")
    assert (status, answer["error"]["param"]) == (400, "worker")
    status, answer = call(f"{front.url}/worker_status", {"latest_finished_version": "x"})
    assert (status, answer["error"]["param"]) == (400, "latest_finished_version")
    assert call(f"{front.url}/update", {})[0] == 401
