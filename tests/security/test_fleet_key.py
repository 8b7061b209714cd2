"""Masters, workers and proxies with a fleet key: they work together, and others get nowhere."""

import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq

from protocol.curve import Curve
from protocol.event_frames import SNAPSHOT, replay_request
from protocol.fleet_key import HEADER, FleetKey
from services.http.rtp_operations import CHECKED
from tests.conftest import ModelDir
from tests.support.clients import all_up, complete
from tests.support.conversations import LONG, asking, picture
from tests.support.stack import Process, call, proxy, running
from tests.support.waiting import until

KEY = FleetKey("the-secret-of-this-fleet")
OPEN = {"/health", "/ping", "/ready", "/version", "/metrics"}
SEEN = asking("Look at this:", picture(77), LONG, "What is it?")


@dataclass
class Fleet:
    master: Process
    workers: list[Process]
    proxy: Process

    def views(self) -> list[Any]:
        _, answer = call(f"{self.master.url}/workers", headers=KEY.headers)
        found: list[Any] = answer.get("workers", [])
        return found


@pytest.fixture(scope="module")
def fleet(model_dir: ModelDir) -> Iterator[Fleet]:
    with running(model_dir("qwen2_5_vl")) as stack:
        key = ("--fleet-key", KEY.secret)
        master = stack.start_plain("services.master", *key, "--log-level", "warning")
        master.wait_ready()
        flags = (*key, "--master-url", master.url, "--heartbeat-interval", "0.2")
        workers = [
            stack.start(f"services.{role}", *flags) for role in ("encoder", "prefill", "decode")
        ]
        for worker in workers:
            worker.wait_ready()
        server = proxy(stack, [], [], [], *key, "--master-url", master.url)
        fleet = Fleet(master, workers, server)
        until(lambda: all_up(server, 3), server.log)
        yield fleet
        assert set(stack.stop()) == {0}


def test_a_picture_goes_through_all_stages_and_is_indexed(fleet: Fleet) -> None:
    answer = complete(fleet.proxy, SEEN, max_tokens=4)
    assert answer["usage"]["completion_tokens"] == 4
    until(
        lambda: sum(view.get("indexed_blocks", 0) for view in fleet.views()) > 0, fleet.master.log
    )
    until(lambda: sum(view.get("indexed_media", 0) for view in fleet.views()) > 0, fleet.master.log)


def test_the_pipe_between_http_and_engine_is_for_this_user_alone(fleet: Fleet) -> None:
    for worker in fleet.workers:
        found = [
            Path(one.laddr)
            for one in psutil.Process(worker.process.pid).net_connections("unix")
            if str(one.laddr).endswith(("/commands", "/events"))
        ]
        assert len(found) >= 2
        assert {stat.S_IMODE(path.parent.stat().st_mode) for path in found} == {0o700}


RPC = (
    "/register",
    "/heartbeat",
    "/deregister",
    "/drain",
    "/schedule",
    "/schedules",
    "/suspect",
    "/finished",
)


def routes(process: Process) -> set[tuple[str, str]]:
    _, found = call(f"{process.url}/openapi.json", headers=KEY.headers)
    named = {(method.upper(), path) for path, one in found["paths"].items() for method in one}
    assert len(named) > 3, "the routes are known"
    return {route for route in named if route[1] not in OPEN} - {*CHECKED, ("GET", "/")}


@pytest.mark.parametrize("given", [{}, {HEADER: "a-guess-of-the-secret-it-is"}, {HEADER: ""}])
def test_every_route_but_those_of_status_needs_it(fleet: Fleet, given: dict[str, str]) -> None:
    every = fleet.workers if not given else fleet.workers[-1:]
    asked = [(p, *route) for p in every for route in sorted(routes(p))]
    own_key = {"/instances", "/instances/role", "/set_log_level", "/busy_threshold"}  # the admin's
    asked += [(fleet.master, *route) for route in routes(fleet.master) if route[1] not in own_key]
    asked += [(fleet.master, "POST", path) for path in RPC]
    asked += [(fleet.master, "GET", path) for path in ("/workers", "/openapi.json", "/nowhere")]
    asked += [(fleet.workers[0], "POST", path) for path in ("/drain/", "//drain", "/%64rain")]
    for process, method, path in asked:
        body = None if method == "GET" else b"{}"
        status, answer = call(process.url + path, body, headers=given, method=method)
        assert status == 401, (path, answer)
        assert answer["error"]["code"] == "invalid_fleet_key" and "--fleet-key" in str(answer)
    for path in own_key:
        assert call(f"{fleet.master.url}{path}", b"{}", headers=given)[0] == 401
    for process in (*fleet.workers, fleet.master):
        assert call(f"{process.url}/version", headers=given)[0] == 200
    assert not any(view.get("draining") for view in fleet.views())


def test_events_are_for_the_fleet_alone(fleet: Fleet) -> None:
    """Replay hands out the token ids of all clients' prompts."""
    (view,) = [v for v in fleet.views() if v["info"]["role"] == "prefill"]
    source = view["info"]["events"][0]
    ours, others = Curve.of(KEY), Curve.of(FleetKey("a-guess-of-the-secret-it-is"))
    with zmq.Context() as context:
        sockets = []
        for curve in (None, others, ours):
            sockets.append(context.socket(zmq.DEALER))
            sockets[-1].linger = 0
            if curve is not None:
                curve.connect(sockets[-1])
            sockets[-1].connect(source["replay"])
            sockets[-1].send_multipart(replay_request(SNAPSHOT))
        assert sockets[2].poll(10_000), "with the key it is answered"
        assert [socket.poll(100) for socket in sockets[:2]] == [0, 0]
        for socket in sockets:
            socket.close()


def test_a_proxy_with_another_key_says_whose_fault_that_is(fleet: Fleet) -> None:
    """No client is told that its own key is wrong."""
    with running(fleet_model(fleet)) as stack:
        decode = fleet.workers[2]
        flags = ("--decode-servers-urls", decode.url, "--probe-interval", "0.1")
        process = stack.start("proxy", *flags, "--fleet-key", "another-secret-altogether",
                              "--failover-wait", "0.1")  # fmt: skip
        process.wait_ready()
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
        status, answer = call(f"{process.url}/v1/chat/completions", body)
        assert status in (502, 503), answer
        until(
            lambda: "has another --fleet-key than this proxy" in "".join(process.log), process.log
        )
        assert call(f"{process.url}/health")[0] == 503


def fleet_model(fleet: Fleet) -> Any:
    flags = fleet.proxy.flags
    return flags[flags.index("--model") + 1]


def test_without_a_key_only_this_machine_is_served(model_dir: ModelDir) -> None:
    """Each process refuses a --host that others reach; a key, or a flag of its own, allows it."""
    model = str(model_dir("qwen2_5_vl"))
    decode = ("--decode-servers-urls", "http://127.0.0.1:9", "--dialect", "openai")
    side = ("--model", model, "--kv-transfer-config",
            '{"kv_connector": "shm", "kv_ip": "0.0.0.0"}')  # fmt: skip
    everywhere = ("--host", "0.0.0.0")
    refused: dict[tuple[str, ...], tuple[str, ...]] = {
        ("services.master", *everywhere): ("--host 0.0.0.0", "--fleet-key"),
        ("services.mock", *everywhere): ("--host 0.0.0.0", "--fleet-key"),
        ("proxy", *decode, *everywhere): ("--host 0.0.0.0", "--api-key"),
        ("services.decode", *side): ("--kv-transfer-config 0.0.0.0", "--fleet-key"),
    }
    started = {command: Process(*command, env={}) for command in refused}
    for command, words in refused.items():
        status, said = started[command].refusal()
        assert status == 2, said
        (line,) = [one for one in said if one.startswith("error: ")]
        assert all(word in line for word in (*words, "--allow-unprotected"))
