"""What the master answers to other clients than ours: bad input, RTP-LLM, workers by hand."""

from collections.abc import Callable

from protocol.keys import block_keys, root_key
from protocol.kv_events import BlockStored, short_key
from tests.support.masters import (
    WAIT_S,
    FakeVLLM,
    Publisher,
    instances,
    metric,
    register,
    schedule,
    until,
    workers,
)
from tests.support.stack import Process, call

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
    assert (status, answer["success"], answer["code"]) == (200, False, 8406)


def test_dynamos_busy_threshold(start: Callable[..., Process]) -> None:
    master = start("--admin-api-key", "secret", "--active-decode-blocks-threshold", "0.9")
    url, key = f"{master.url}/busy_threshold", {"x-api-key": "secret"}
    load = {"free_blocks": 30, "total_blocks": 100, "running": 3}
    register(master, "d", "decode", load=load)
    assert call(url, {"model": "m"})[0] == 401
    shown = {
        "model": "m", "active_decode_blocks_threshold": 0.9, "active_prefill_tokens_threshold": None
    }  # fmt: skip
    assert call(url, {"model": "m"}, headers=key) == (200, shown)
    assert schedule(master, model="m")["decode"]["instance_id"] == "d"
    lower = {"model": "m", "active_decode_blocks_threshold": 0.5}
    assert call(url, lower, headers=key)[1]["active_decode_blocks_threshold"] == 0.5
    ask = {"request_id": "r", "prompt_tokens": 5, "model": "m", "deadline_s": 0.2}
    assert call(f"{master.url}/schedule", ask)[0] in (503, 504), "its KV is 70 % in use"
    assert call(url, headers=key)[1]["thresholds"] == [{**shown, **lower}]
    for body, status, param in (
        ({"model": "n"}, 404, "model"),
        ({**lower, "active_decode_blocks_threshold": 7}, 400, "active_decode_blocks_threshold"),
        ({"model": "m", "active_prefill_tokens_threshold": 9}, 400,
         "active_prefill_tokens_threshold"),
    ):  # fmt: skip
        answer = call(url, body, headers=key)
        assert (answer[0], answer[1]["error"]["param"]) == (status, param)


def test_workers_added_by_hand_are_probed(start: Callable[..., Process]) -> None:
    flags = ("--probe-interval", "0.05", "--probe-timeout", "5", "--probe-failures", "2")
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
