"""The real master process, driven over HTTP and by a ZMQ event publisher."""

import json
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from protocol.keys import block_keys, root_key
from protocol.kv_events import SNAPSHOT, BlockStored, EmbeddingStored, short_key
from protocol.registry import Placement, ScheduleRequest, Workers
from tests.support.masters import (
    KEYS,
    WAIT_S,
    FakeVLLM,
    Publisher,
    blocks_of,
    instances,
    metric,
    register,
    schedule,
    until,
    workers,
)
from tests.support.stack import Process, call


def test_a_master_starts_within_five_seconds() -> None:
    """Of processor time, as a command: how long a busy machine takes says nothing of the master,
    and a forked one finds its imports done, or waits until somebody has done those of engines."""
    master = Process("services.master", "--log-level", "warning", env={}, forked=False)
    try:
        master.wait_ready()
        assert processor_s(master.process.pid) < 5.0
    finally:
        assert master.stop() == 0


def processor_s(pid: int) -> float:
    """Spent by a process so far (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system = fields[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def test_a_fleet_is_placed_on(start: Callable[..., Process]) -> None:
    master = start()
    for name, role in (("e", "encode"), ("p", "prefill"), ("d", "decode")):
        asked_at = {"peer_host": "h", "peer_port": 7} if name == "e" else None
        assert register(master, name, role, ec_endpoint=asked_at)[0] == 200
    items = [{"mm_hash": "x", "tokens": 16, "offset": 2}]
    answer = schedule(master, items=items, debug=True)
    assert answer["prefill"]["url"] == "http://p:1"
    assert answer["decode"]["instance_id"] == "d"
    assert answer["encoders"][0]["state"] == "encode"
    assert answer["encoders"][0]["target"]["ec_endpoint"] == {"peer_host": "h", "peer_port": 7}
    assert answer["debug"]["prefill"]["chosen"] == "p"
    assert call(f"{master.url}/finished", {"reports": [{"request_id": "r"}]})[0] == 200
    assert metric(master, "requests_in_flight") == 0
    assert metric(master, "placed_total") == 1
    assert call(f"{master.url}/health")[1]["models"] == {
        "m": {"encode": 1, "prefill": 1, "decode": 1}
    }
    assert call(f"{master.url}/version")[1]["version"]


def test_msgpack_is_spoken_too(start: Callable[..., Process]) -> None:
    master = start()
    register(master, "d", "decode")
    request = urllib.request.Request(
        f"{master.url}/schedule",
        msgspec.msgpack.encode(ScheduleRequest("r", 5)),
        {"content-type": "application/msgpack"},
    )
    with urllib.request.urlopen(request, timeout=WAIT_S) as response:
        placement = msgspec.msgpack.decode(response.read(), type=Placement)
    assert (placement.request_id, placement.decode.instance_id) == ("r", "d")


@pytest.mark.parametrize("encoding", ["map", "array"])
def test_events_reach_the_index_in_both_encodings(
    start: Callable[..., Process], encoding: str
) -> None:
    master, publisher = start(), Publisher(encoding)
    publisher.publish(BlockStored(KEYS[:3]))
    register(master, "p", "prefill", events=[publisher.source])
    register(master, "q", "prefill")
    register(master, "d", "decode")
    until(lambda: blocks_of(master, "p") == 3)
    publisher.publish(BlockStored(KEYS[3:5], KEYS[2]))
    publisher.garbage()
    publisher.publish(BlockStored(KEYS[5:7], KEYS[4]), EmbeddingStored("x"), lose=True)
    publisher.publish(BlockStored(KEYS[7:9], KEYS[6]))
    until(lambda: blocks_of(master, "p") == 9)
    answer = schedule(master)
    assert answer["prefill"]["instance_id"] == "p"
    assert answer["hit_tokens"] == 9 * 16
    assert metric(master, 'event_messages_total{kind="gap"}') == 1
    assert metric(master, 'event_messages_total{kind="garbage"}') == 1
    publisher.close()


def test_a_restarted_master_is_right_again_after_registration_and_replay(
    start: Callable[..., Process],
) -> None:
    master, publisher = start(), Publisher(snapshots=True)
    publisher.publish(BlockStored(KEYS[:4]))
    register(master, "p", "prefill", events=[publisher.source])
    register(master, "d", "decode")
    until(lambda: blocks_of(master, "p") == 4)
    master.kill()
    publisher.publish(BlockStored(KEYS[4:6]))
    master.restart()
    beat = {"instance_id": "p"}
    assert call(f"{master.url}/heartbeat", beat) == (200, {"known": False})
    register(master, "p", "prefill", events=[publisher.source])
    register(master, "d", "decode")
    until(lambda: blocks_of(master, "p") == 6)
    assert call(f"{master.url}/heartbeat", beat)[1].get("known", True)
    assert set(publisher.questions) == {SNAPSHOT}
    publisher.close()


def test_a_lapsed_lease_is_noticed(start: Callable[..., Process]) -> None:
    master = start("--lease", "0.4")
    register(master, "d", "decode")
    schedule(master)
    until(lambda: workers(master) == {})
    status, answer = call(f"{master.url}/schedule", {"request_id": "r", "prompt_tokens": 1})
    assert (status, answer["error"]["code"]) == (503, "no_decode")
    assert metric(master, "lapsed_total") == 1


def test_requests_wait_for_room_and_are_refused_without(start: Callable[..., Process]) -> None:
    master = start("--busy-requests", "1", "--max-queue", "1", "--queue-timeout", "5")
    register(master, "d", "decode")
    schedule(master, "first")
    answers: list[Any] = []
    waiting = threading.Thread(target=lambda: answers.append(schedule(master, "second")))
    waiting.start()
    until(lambda: metric(master, "requests_waiting") == 1)
    request = urllib.request.Request(
        f"{master.url}/schedule",
        json.dumps({"request_id": "third", "prompt_tokens": 1}).encode(),
        {"content-type": "application/json"},
    )
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=WAIT_S)
    assert caught.value.code == 503
    assert int(caught.value.headers["retry-after"]) >= 1
    assert json.loads(caught.value.read())["error"]["code"] == "queue_full"
    assert answers == []
    call(f"{master.url}/finished", {"reports": [{"request_id": "first"}]})
    waiting.join(WAIT_S)
    assert answers[0]["decode"]["instance_id"] == "d"
    assert answers[0]["queued_ms"] > 0


def follow(master: Process, after: str = "", wait_s: float = 0.0) -> Any:
    status, answer = call(f"{master.url}/workers?after={after}&wait_s={wait_s}")
    assert status == 200, answer
    return answer


def test_proxies_follow_the_workers_by_version(start: Callable[..., Process]) -> None:
    master = start()
    register(master, "e", "encode", ec_endpoint={"peer_host": "h", "peer_port": 7})
    register(master, "d", "decode", kv_layout={"groups": [], "block_size": 16, "dtype": "F32"})
    first = follow(master)
    assert first["full"] and [w["info"]["instance_id"] for w in first["workers"]] == ["e", "d"]
    assert first["workers"][0]["info"]["ec_endpoint"] == {"peer_host": "h", "peer_port": 7}
    assert follow(master, first["version"]) == {"version": first["version"]}
    assert follow(master, first["version"], 0.05) == {"version": first["version"]}
    call(f"{master.url}/heartbeat", {"instance_id": "d", "load": {"queued": 3}})
    assert follow(master, first["version"]) == {"version": first["version"]}, "load is no change"
    found: list[Any] = []
    polling = threading.Thread(target=lambda: found.append(follow(master, first["version"], 30)))
    polling.start()
    call(f"{master.url}/drain", {"instance_id": "d"})
    call(f"{master.url}/deregister", {"instance_id": "e"})
    polling.join(WAIT_S)
    changes = found[0]
    while not ("workers" in changes and "gone" in changes):
        changes |= follow(master, changes["version"], 30)
    assert not changes.get("full") and changes["gone"] == ["e"]
    assert [(w["info"]["instance_id"], w["draining"]) for w in changes["workers"]] == [("d", True)]
    assert follow(master, "elsewhere-1")["full"]
    assert follow(master, f"{first['version'].partition('-')[0]}-{'1' * 5000}")["full"]
    assert call(f"{master.url}/workers?wait_s=soon")[0] == 400
    request = urllib.request.Request(
        f"{master.url}/workers", headers={"accept": "application/msgpack"}
    )
    with urllib.request.urlopen(request, timeout=WAIT_S) as response:
        assert len(msgspec.msgpack.decode(response.read(), type=Workers).workers) == 1


WORKER = {"instance_id": "a", "role": "decode", "url": "http://a", "model": "m"}
BAD = [
    ("/register", b"{", "malformed_json"),
    ("/register", {**WORKER, "role": "chef"}, "invalid_value"),
    ("/register", {**WORKER, "url": "ftp://a"}, "invalid_value"),
    ("/register", {**WORKER, "url": "http://a..b"}, "bad_url"),
    ("/register", {**WORKER, "url": "http://a:99999"}, "bad_url"),
    ("/register", {**WORKER, "kv_endpoint": {"port": 2**70}}, "unusable_info"),
    ("/register", b'{"ec_endpoint":' + b'{"x":' * 10_000, "malformed_json"),
    ("/register", {**WORKER, "instance_id": ""}, "invalid_value"),
    ("/register", {**WORKER, "instance_id": "d"}, "duplicate_instance"),
    ("/heartbeat", {"instance_id": "d", "load": {"free_blocks": 2}}, "absurd_load"),
    ("/heartbeat", {"instance_id": "d", "load": {"queued": -1}}, "invalid_value"),
    ("/heartbeat", {"instance_id": "d", "load": {"queued": 10**30}}, "invalid_value"),
    ("/schedule", [], "invalid_value"),
    ("/schedule", {"request_id": "r", "prompt_tokens": 0}, "invalid_value"),
    ("/schedule", {"request_id": "r", "prompt_tokens": 5, "priority": 101}, "invalid_value"),
    ("/schedule", {"request_id": "r", "prompt_tokens": 5, "block_keys": [1]}, "invalid_value"),
    ("/schedule", {"request_id": "r", "prompt_tokens": 50, "block_keys": [-1]}, "invalid_value"),
    ("/schedule", {"request_id": "r", "prompt_tokens": 50, "block_keys": [2**64]}, "invalid_value"),
    ("/schedule", {"request_id": "r", "prompt_tokens": 5, "model": "n"}, "model_not_found"),
    ("/finished", {"reports": [{"request_id": "r", "stage": "party"}]}, "invalid_value"),
]  # fmt: skip


def test_bad_input_is_refused_clearly_and_counted(start: Callable[..., Process]) -> None:
    master = start("--max-body-bytes", "100000")
    register(master, "d", "decode")
    for path, body, code in BAD:
        status, answer = call(f"{master.url}{path}", body)
        assert status == (404 if code == "model_not_found" else 400), (body, answer)
        assert answer["error"]["code"] == code, (body, answer)
    big = {"request_id": "r" * 200_000, "prompt_tokens": 1}
    assert call(f"{master.url}/schedule", big)[0] == 413
    assert call(f"{master.url}/schedule")[0] == 404, "it is no page"
    counted = {code for _, _, code in BAD}
    assert all(metric(master, f'errors_total{{code="{code}"}}') for code in counted)
    assert metric(master, 'refused_workers_total{code="duplicate_instance"}') == 1
    assert metric(master, 'refused_workers_total{code="absurd_load"}') == 1
    register(master, "other", "decode", model="n")
    assert schedule(master, model="m")["decode"]["instance_id"] == "d"
    assert schedule(master, model="n")["decode"]["instance_id"] == "other"
    status, answer = call(f"{master.url}/schedule", {"request_id": "r", "prompt_tokens": 5})
    assert (status, answer["error"]["param"]) == (404, "model")
    assert "name one" in answer["error"]["message"]


def test_a_source_that_cannot_be_followed_costs_its_worker_only_the_index(
    start: Callable[..., Process],
) -> None:
    master = start()
    sources = [{"endpoint": "nonsense"}, {"endpoint": "tcp://127.0.0.1:1", "replay": "tcp://*:1"}]
    assert register(master, "d", "decode", events=sources)[0] == 200
    assert metric(master, 'event_messages_total{kind="bad_endpoint"}') == 2
    assert schedule(master)["decode"]["instance_id"] == "d"


def test_rtp_llms_contract(start: Callable[..., Process]) -> None:
    master = start()
    host = master.url.removeprefix("http://")
    ask = {"model": "m", "block_cache_keys": [-1, 2], "seq_len": 100, "debug": True}
    status, answer = call(f"{master.url}/rtp_llm/schedule", ask)
    assert (status, answer["success"], answer["error_code"]) == (200, False, 8400)
    register(master, "d", "decode", url="http://10.0.0.2:8000")
    register(master, "p", "prefill", url="http://10.0.0.1:8000")
    status, answer = call(f"{master.url}/rtp_llm/schedule", {**ask, "generate_timeout": 60_000})
    assert (status, answer["success"], answer["code"]) == (200, True, 200)
    servers = [(s["role"], s["server_ip"], s["http_port"]) for s in answer["server_status"]]
    assert servers == [(1, "10.0.0.1", 8000), (2, "10.0.0.2", 8000)]
    assert answer["server_status"][0]["debug_info"]["estimate_ttft_ms"] > 0
    assert answer["real_master_host"] == host
    for path in ("/rtp_llm/master", "/rtp_llm/master/info"):
        assert call(f"{master.url}{path}", {})[1] == {"real_master_host": host, "queue_length": 0}
    status, answer = call(f"{master.url}/rtp_llm/schedule", {"seq_len": "many"})
    assert (status, answer["success"], answer["code"]) == (200, False, 400)


def test_workers_added_by_hand_are_probed(start: Callable[..., Process]) -> None:
    flags = ("--probe-interval", "0.05", "--probe-timeout", "1", "--probe-failures", "2")
    master = start("--admin-api-key", "secret", *flags)
    worker, publisher = FakeVLLM(), Publisher("array")
    body = {
        "role": "prefill_decode", "url": worker.url, "ec_zmq_addrs": ["tcp://h:1"], "dp_size": 1,
        "revision": "r", "events": [publisher.source],
    }  # fmt: skip
    assert instances(master, "POST", body, key="guess")[0] == 401
    assert instances(master, "POST", {**body, "role": "chef"})[0] == 400
    assert instances(master, "POST", {**body, "url": "http://a..b"})[0] == 400
    assert instances(master, "POST", body)[0] == 200
    until(lambda: len(workers(master)) == 1)
    tokens = list(range(40))
    publisher.publish(BlockStored([901, 902], None, tokens[:32], 16))
    until(lambda: metric(master, 'index_entries{kind="blocks",model="m"}') == 2)
    keys = [short_key(k) for k in block_keys(tokens, 16, root_key(model="m", revision="r"))]
    answer = schedule(master, prompt_tokens=40, block_keys=keys, model="m")
    assert answer["decode"]["url"] == worker.url
    assert answer["decode"]["dialect"] == "openai"
    assert answer["hit_tokens"] == 32
    worker.healthy = False
    until(lambda: workers(master) == {})
    worker.healthy = True
    until(lambda: len(workers(master)) == 1)
    shown = instances(master, "GET")[1]["instances"]
    assert [(i["role"], i["healthy"]) for i in shown] == [("prefill_decode", True)]
    assert instances(master, "DELETE", body)[0] == 200
    assert workers(master) == {}
    assert instances(master, "DELETE", body)[0] == 400
    worker.close()
    publisher.close()


def test_a_bad_configuration_does_not_start() -> None:
    process = Process("services.master", "--policy", "nonsense", env={})
    assert process.process.wait(WAIT_S) == 2
