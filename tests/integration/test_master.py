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

from protocol.event_frames import SNAPSHOT
from protocol.kv_events import BlockStored, EmbeddingStored
from protocol.placement import Placement, ScheduleRequest
from protocol.registry import Workers
from tests.support.masters import (
    KEYS,
    WAIT_S,
    Publisher,
    blocks_of,
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
    master = start("--lease", "2")
    register(master, "d", "decode")
    schedule(master)
    until(lambda: workers(master) == {})
    status, answer = call(f"{master.url}/schedule", {"request_id": "r", "prompt_tokens": 1})
    assert (status, answer["error"]["code"]) == (503, "no_decode")
    assert metric(master, "lapsed_total") == 1


def test_requests_wait_for_room_and_are_refused_without(start: Callable[..., Process]) -> None:
    master = start("--busy-requests", "1", "--max-queue", "1", "--queue-timeout", "60")
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


def test_a_source_that_cannot_be_followed_costs_its_worker_only_the_index(
    start: Callable[..., Process],
) -> None:
    master = start("--allowed-worker-networks", "any")
    bad, good = "not an address", "tcp://127.0.0.1:1"
    sources = [{"endpoint": bad}, {"endpoint": good, "replay": bad}]
    assert register(master, "d", "decode", events=sources)[0] == 200
    assert metric(master, 'event_messages_total{kind="bad_endpoint"}') == 2
    assert schedule(master)["decode"]["instance_id"] == "d"
