"""Two real masters that share a real Redis: each knows what workers tell the other."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import pytest

from protocol.kv_events import BlockStored
from protocol.registry import Heartbeat, InstanceInfo, Load
from services.master.__main__ import main
from services.master.replication.messages import (
    Added,
    Beat,
    Joined,
    Placed,
    SharedCharge,
    encode_stored,
)
from tests.support.master_nodes import encode_message
from tests.support.masters import (
    KEYS,
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
from tests.support.redis_server import RedisServer
from tests.support.stack import Process, call

NAMESPACE = "fleet-a"
PREFIX = f"triptych:{NAMESPACE}:"
LEASE_S = 60.0


@dataclass
class Pair:
    redis: RedisServer
    a: Process
    b: Process


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """Shared by all tests of this module; each has a model of its own."""
    server = RedisServer()
    flags = (
        "--redis-url", server.url, "--redis-namespace", NAMESPACE, "--lease", str(LEASE_S),
        "--admin-api-key", "secret", "--probe-interval", "0.05", "--log-level", "warning",
        "--breaker-failures", "2", "--settle", "30",
    )  # fmt: skip
    masters = [Process("services.master", *flags, env={}) for _ in "ab"]
    try:
        for master in masters:
            master.wait_ready()
        yield Pair(server, *masters)
        assert [master.stop() for master in masters] == [0, 0]
    finally:
        for master in masters:
            master.kill()
        server.close()


def known(pair: Pair, model: str) -> list[set[str]]:
    """Ids of a model's workers, at each master."""
    shown = [workers(master) for master in (pair.a, pair.b)]
    return [{n for n, w in some.items() if w["info"]["model"] == model} for some in shown]


def test_masters_say_how_it_is(pair: Pair) -> None:
    there = {"redis": "up", "masters": 2}
    until(lambda: all(call(f"{m.url}/health")[1]["shared"] == there for m in (pair.a, pair.b)))
    assert metric(pair.a, "redis_up") == 1


def test_a_worker_of_one_master_is_known_by_both_until_it_leaves(pair: Pair) -> None:
    register(pair.a, "known", "decode", model="known", ec_endpoint={"peer_port": 1})
    until(lambda: known(pair, "known") == [{"known"}] * 2)
    key = f"{PREFIX}instance:known"
    assert 0 < int(pair.redis.client.pttl(key)) <= LEASE_S * 1e3
    at_b = workers(pair.b)["known"]["info"]
    assert at_b == workers(pair.a)["known"]["info"]
    assert at_b["ec_endpoint"] == {"peer_port": 1}
    call(f"{pair.b.url}/drain", {"instance_id": "known"})
    until(lambda: all(workers(m)["known"].get("draining") for m in (pair.a, pair.b)))
    call(f"{pair.b.url}/deregister", {"instance_id": "known"})
    until(lambda: known(pair, "known") == [set()] * 2)
    assert not pair.redis.client.exists(key)


def test_heartbeats_to_one_count_at_both_and_renew_what_redis_holds(pair: Pair) -> None:
    register(pair.a, "beating", "decode", model="beating")
    until(lambda: known(pair, "beating") == [{"beating"}] * 2)
    client, key = pair.redis.client, f"{PREFIX}instance:beating"
    beat = {
        "instance_id": "beating",
        "load": {"queued": 7, "free_blocks": 1, "total_blocks": 9},
    }
    client.pexpire(key, 5000)
    call(f"{pair.a.url}/heartbeat", beat)
    until(lambda: workers(pair.b)["beating"].get("requests") == 7)
    until(lambda: int(client.pttl(key)) > 5000)
    client.delete(key)
    call(f"{pair.a.url}/heartbeat", beat)
    until(lambda: bool(client.exists(key)))


def test_each_master_indexes_events_by_itself(pair: Pair) -> None:
    publisher = Publisher(snapshots=True)
    publisher.publish(BlockStored(KEYS[:4]))
    for name in ("p", "q"):
        sources = [publisher.source] if name == "p" else []
        register(pair.a, name, "prefill", model="indexed", events=sources)
    register(pair.b, "d", "decode", model="indexed")
    until(lambda: blocks_of(pair.a, "p") == blocks_of(pair.b, "p") == 4)
    until(lambda: known(pair, "indexed") == [{"p", "q", "d"}] * 2)
    answer = schedule(pair.b, model="indexed")
    assert (answer["prefill"]["instance_id"], answer["hit_tokens"]) == ("p", 64)
    publisher.close()


def test_two_masters_do_not_send_all_to_the_same_worker(pair: Pair) -> None:
    names = {f"h{i}" for i in range(8)}
    for name in names:
        register(pair.a, name, "prefill_decode", model="herd")
    until(lambda: known(pair, "herd") == [names] * 2)
    chosen = []
    for i in range(8):
        master, other = (pair.a, pair.b) if i < 4 else (pair.b, pair.a)
        answer = schedule(master, f"herd{i}", model="herd", block_keys=[], prompt_tokens=5000)
        chosen.append(answer["decode"]["instance_id"])
        until(lambda name=chosen[-1], at=other: workers(at)[name].get("requests") == 1)
    assert set(chosen) == names
    for i in range(8):
        master = pair.a if i < 4 else pair.b
        call(f"{master.url}/finished", {"reports": [{"request_id": f"herd{i}"}]})
    until(lambda: not any(workers(pair.b)[name].get("requests") for name in names))


def test_both_masters_count_what_either_has_placed(pair: Pair) -> None:
    """Each says how late the other hears of it: all within five seconds, the last bound counted."""
    names = {f"e{i}" for i in range(4)}
    for i, name in enumerate(sorted(names)):
        register((pair.a, pair.b)[i % 2], name, "prefill_decode", model="even")
    until(lambda: known(pair, "even") == [names] * 2)
    for i in range(40):
        schedule((pair.a, pair.b)[i % 2], f"even{i}", model="even", block_keys=[])

    def counted(master: Process) -> dict[str, int]:
        shown = workers(master)
        return {name: shown[name].get("requests", 0) for name in names}

    until(lambda: counted(pair.a) == counted(pair.b) and sum(counted(pair.a).values()) == 40)
    for master in (pair.a, pair.b):
        told = metric(master, "replication_delay_seconds_count")
        assert metric(master, 'replication_delay_seconds_bucket{le="5.0"}') == told > 0
    for i in range(40):
        call(f"{pair.a.url}/finished", {"reports": [{"request_id": f"even{i}"}]})
    until(lambda: counted(pair.a) == counted(pair.b) == dict.fromkeys(names, 0))


def test_a_breaker_that_one_master_opens_is_open_at_the_other(pair: Pair) -> None:
    register(pair.a, "bad", "decode", model="breaker")
    until(lambda: known(pair, "breaker") == [{"bad"}] * 2)
    reports = [{"request_id": f"r{i}", "failed": ["bad"]} for i in range(2)]
    call(f"{pair.b.url}/finished", {"reports": reports})
    until(lambda: all(not workers(m)["bad"].get("usable", True) for m in (pair.a, pair.b)))


def test_workers_added_by_hand_are_shared(pair: Pair) -> None:
    worker = FakeVLLM()
    body = {"role": "prefill_decode", "url": worker.url, "model": "by-hand"}
    assert instances(pair.a, "POST", body)[0] == 200
    name = f"prefill_decode@{worker.url}"
    until(lambda: known(pair, "by-hand") == [{name}] * 2)
    assert pair.redis.client.pttl(f"{PREFIX}added:{name}") > 0
    assert instances(pair.b, "DELETE", body)[0] == 200
    until(lambda: known(pair, "by-hand") == [set()] * 2)
    assert instances(pair.a, "GET")[1] == {"instances": []}
    old = Added(name, msgspec.json.encode(body))
    pair.redis.client.publish(f"{PREFIX}masters", encode_message("cut-off", [old]))
    time.sleep(0.2)  # a few rounds of probes, in which nothing may happen
    assert known(pair, "by-hand") == [set()] * 2, "a master that was cut off does not know better"
    assert instances(pair.b, "POST", body)[0] == 200
    until(lambda: known(pair, "by-hand") == [{name}] * 2)
    worker.close()


def refused(pair: Pair) -> float:
    kinds = ("garbage", "absurd_load", "duplicate_instance", "absurd_placement")
    return sum(metric(pair.b, f'replication_total{{kind="refused_{kind}"}}') for kind in kinds)


def test_garbage_in_redis_is_refused_counted_and_harmless(pair: Pair) -> None:
    register(pair.a, "sane", "decode", model="sane")
    until(lambda: known(pair, "sane") == [{"sane"}] * 2)
    client, before = pair.redis.client, refused(pair)
    worker = InstanceInfo("other", "decode", "http://other:1", "sane")
    absurd = Load(free_blocks=2, total_blocks=1)
    taken = InstanceInfo("sane", "decode", "http://zzz:1", "sane")
    messages = [
        b"", b"nonsense", bytes(range(256)), b"\x91" * 5000,
        encode_message("x", [Beat(Heartbeat("sane", load=absurd))]),
        encode_message("x", [Joined(msgspec.structs.replace(worker, load=absurd), "x")]),
        encode_message("x", [Joined(taken, "x")]),
        encode_message("x", [Placed("r", "sane", 1.0, decode=SharedCharge("sane", 1e400))]),
    ]  # fmt: skip
    for message in messages:
        client.publish(f"{PREFIX}masters", message)
    until(lambda: refused(pair) >= before + len(messages))
    client.set(f"{PREFIX}instance:junk", b"\xc1junk", px=60_000)
    client.lpush(f"{PREFIX}instance:list", "a", "b")
    client.set(f"{PREFIX}instance:alias", encode_stored(Joined(worker, "x")), px=60_000)
    client.set(f"{PREFIX}added:junk", b"{", px=60_000)
    client.set("triptych:fleet-b:instance:other", encode_stored(Joined(worker, "x")), px=60_000)
    before = refused(pair)
    for name in ("junk", "list", "alias"):
        client.publish(f"{PREFIX}masters", encode_message("x", [Beat(Heartbeat(name))]))
    until(lambda: refused(pair) >= before + 3)
    assert known(pair, "sane") == [{"sane"}] * 2
    assert schedule(pair.b, model="sane")["decode"]["instance_id"] == "sane"
    register(pair.b, "late", "decode", model="sane")
    until(lambda: known(pair, "sane") == [{"sane", "late"}] * 2)


def test_a_bad_redis_configuration_does_not_start(capsys: pytest.CaptureFixture[str]) -> None:
    urls = ("http://h", "redis://h:abc", "redis://h?socket_timeout=zz", "redis://[::1",
            "redis://h?no_such_option=1", "redis://a..b")  # fmt: skip
    for flags in (*(["--redis-url", url] for url in urls), ["--redis-namespace", "a*"]):
        assert main(flags) == 2
        assert flags[0] in capsys.readouterr().err


def test_both_give_a_worker_one_role_and_its_home_tells_it(pair: Pair) -> None:
    """By a call to the other master, and, of two that only decode, by the one that decides."""
    several = {"model": "moving", "roles": ["decode", "prefill", "encode"]}
    register(pair.a, "w0", "decode", **several)
    until(lambda: known(pair, "moving") == [{"w0"}] * 2)
    order = {"instance_id": "w0", "role": "encode"}
    status, answer = call(f"{pair.b.url}/instances/role", order, headers={"x-api-key": "secret"})
    assert (status, answer["status"]) == (200, "moved")

    def told(name: str, role: str) -> str | None:
        beat = {"instance_id": name, "role": role}
        found: str | None = call(f"{pair.a.url}/heartbeat", beat)[1].get("role")
        return found

    until(lambda: told("w0", "decode") == "encode")
    assert told("w0", "encode") == "encode", "it says so"
    for name in ("w1", "w2"):
        register(pair.b, name, "decode", **several)

    def roles(master: Process) -> dict[str, str]:
        return {n: w["info"]["role"] for n, w in workers(master).items() if n[0] == "w"}

    until(lambda: sorted(roles(pair.a).values()) == ["decode", "encode", "prefill"])
    until(lambda: roles(pair.a) == roles(pair.b))
    moved = [metric(m, 'role_moves_total{after="prefill",before="decode",by="load",model="moving"}')
             for m in (pair.a, pair.b)]  # fmt: skip
    assert sorted(moved) == [0, 1], "one of them decides"
