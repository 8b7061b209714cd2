"""An attacker registers a worker on the internet, with rates that no worker of the fleet has."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.stack import Process, call

FAST = {"encode_ms_per_token": 1e-9, "decode_base_ms": 1e-9}
FAKE = {"instance_id": "fake", "role": "encode", "url": "http://8.8.8.8:80", "model": "m",
        "load": {"rates": FAST}}  # fmt: skip


@pytest.fixture(scope="module")
def master() -> Iterator[Process]:
    process = Process("services.master", "--admin-api-key", "k", env={})
    process.wait_ready()
    yield process
    assert process.stop() == 0


def registered(master: Process) -> list[str]:
    return [view["info"]["url"] for view in call(f"{master.url}/workers")[1].get("workers", [])]


@pytest.mark.parametrize(
    "more",
    [{}, {"url": "http://127.0.0.1:9", "events": [{"endpoint": "tcp://8.8.8.8:5557"}]},
     {"url": "http://127.0.0.1:9", "events": [{"endpoint": "ipc:///run/some.socket"}]},
     {"url": "http://127.0.0.1:9", "events": [{"endpoint": "tcp://127.0.0.1:0;8.8.8.8:1"}]},
     {"url": "http://127.0.0.1:9", "kv_endpoint": {"remote_host": "8.8.8.8", "remote_port": 1}},
     {"url": "http://127.0.0.1:9", "ec_endpoint": {"peer_host": "0x08080808", "peer_port": 1}},
     {"url": "http://127.0.0.1:9", "ec_zmq_addrs": ["tcp://8.8.8.8:1"]},
     {"url": "http://134744072:80"}],
)  # fmt: skip
def test_it_is_refused_by_name(master: Process, more: dict[str, Any]) -> None:
    status, answer = call(f"{master.url}/register", {**FAKE, **more})
    assert status == 400 and answer["error"]["code"] == "network_not_allowed", answer
    assert "--allowed-worker-networks" in answer["error"]["message"]
    assert registered(master) == []


def test_one_that_is_near_may_register(master: Process) -> None:
    url = "http://127.0.0.1:9"
    assert call(f"{master.url}/register", {**FAKE, "url": url})[0] == 200
    assert registered(master) == [url]
    call(f"{master.url}/deregister", {"instance_id": "fake"})


def test_a_caller_with_the_admin_key_may_add_one_anywhere(master: Process) -> None:
    body = {"role": "decode", "url": "http://192.0.2.1:80"}
    status, _ = call(f"{master.url}/instances", body, headers={"x-api-key": "k"})
    assert status == 200
