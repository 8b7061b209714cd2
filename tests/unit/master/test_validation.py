"""What workers, proxies and configuration may not claim: refused with the field's name."""

from typing import Any

import msgspec
import pytest

from protocol.decoding import accepted
from protocol.errors import ConfigError, InvalidRequest, ModelNotFound, Unavailable
from protocol.kv_events import EventSource, decode_event_batch
from protocol.placement import Placement, ScheduleRequest
from protocol.registry import InstanceInfo, InstanceName, Workers
from protocol.settings import resolve
from services.master.config import MasterConfig
from services.master.fleet.added_workers import decode_probed
from services.master.fleet.registry import Registry
from services.master.master import Master
from services.master.replication.messages import decode_message, decode_stored

DEEP = 200_000


def info(name: str = "w", **fields: Any) -> InstanceInfo:
    return InstanceInfo(name, "decode", **{"url": f"http://{name}:1", "model": "m", **fields})


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("name", ["kv_endpoint", "ec_endpoint"])
@pytest.mark.parametrize(
    "value",
    [2**70, -(2**63) - 1, msgspec.msgpack.Ext(5, b"x"), {(1, 2): 3}, nested(100), "x" * (2 << 20)],
    ids=["large", "small", "extension", "tuple", "deep", "long"],
)
def test_what_cannot_be_told_on_is_refused_by_its_field(name: str, value: Any) -> None:
    registry = Registry(MasterConfig())
    with pytest.raises(InvalidRequest) as caught:
        endpoint: dict[str, Any] = {name: {"x": value}}
        registry.register(info(**endpoint), 0.0)
    assert (caught.value.param, caught.value.code) == (name, "unusable_info")
    assert registry.instances == {} and registry.refused == {"unusable_info": 1}
    endpoint = {name: {"x": 2**64 - 1, "y": [None, 1.5, "z"]}}
    registry.register(info(**endpoint), 0.0)
    shown = Workers("1", True, [])
    assert msgspec.json.encode(shown) and registry.instances["w"].target


@pytest.mark.parametrize(
    "url",
    ["http://a..b", "http://..", "http://" + "a" * 64, "http://h:99999", "http://h:x", "http://",
     "http://[::1", "http://:80", "http://a@b@c/", "http://u:p@h", "http://a b/", "http://a\nb",
     "http://a/?q", "http://a#x", "http://8.8.8.8\\@10.0.0.1/"],
)  # fmt: skip
def test_a_url_that_is_no_address_is_refused(url: str) -> None:
    registry = Registry(MasterConfig())
    with pytest.raises(InvalidRequest) as caught:
        registry.register(info(url=url), 0.0)
    assert (caught.value.param, registry.instances) == ("url", {})


@pytest.mark.parametrize(
    ("field", "value"),
    [("events", [EventSource("tcp://a:1;b:2")]), ("events", [EventSource("tcp://a:1", "tcp://b")]),
     ("kv_endpoint", {"remote_host": "a:0;b", "remote_port": 5}),
     ("kv_endpoint", {"remote_host": ["a"], "remote_port": 5}),
     ("ec_endpoint", {"peer_host": "*", "peer_port": 5}),
     ("ec_zmq_addrs", ["tcp://a:1;b:2"]), ("ec_zmq_addrs", ["tcp://a:0"])],
)  # fmt: skip
def test_an_address_to_connect_to_names_one_host(field: str, value: Any) -> None:
    """Wherever workers may be."""
    registry = Registry(MasterConfig())
    with pytest.raises(InvalidRequest) as caught:
        registry.register(info(**{field: value}), 0.0)
    assert (caught.value.param, caught.value.code) == (field, "bad_address")
    assert registry.instances == {}


def test_nor_may_one_that_is_added_by_hand_name_another() -> None:
    body = {"role": "decode", "url": "http://a:1", "events": [{"endpoint": "tcp://a:1;b:2"}]}
    with pytest.raises(InvalidRequest, match="events"):
        decode_probed(msgspec.json.encode(body))


def test_addresses_of_every_kind_are_taken() -> None:
    registry = Registry(MasterConfig())
    for i, url in enumerate(("http://h", "https://h.x:443/p", "http://[::1]:8", "http://a_b:1")):
        registry.register(info(f"w{i}", url=url), 0.0)
    assert len(registry.instances) == 4


@pytest.mark.parametrize("key", [-1, 2**64, 2**70])
def test_a_block_key_has_64_bits(key: int) -> None:
    body = msgspec.json.encode({"request_id": "r", "prompt_tokens": 64, "block_keys": [1]})
    decode = msgspec.json.Decoder(ScheduleRequest).decode
    master = Master(MasterConfig())
    master.register(info(), 0.0)
    with pytest.raises(InvalidRequest) as caught:
        master.schedule(accepted(decode, body.replace(b"[1]", f"[1,{key}]".encode())), 0.0)
    assert caught.value.param is not None and caught.value.param.startswith("block_keys")
    most = accepted(decode, body.replace(b"[1]", f"[0,{2**64 - 1}]".encode()))
    assert most.block_keys == [0, 2**64 - 1]
    assert isinstance(master.schedule(most, 0.0), Placement)


def test_what_is_nested_too_deep_is_malformed() -> None:
    deep_json = b'{"kv_endpoint":' + b'{"x":' * DEEP + b"1" + b"}" * (DEEP + 1)
    with pytest.raises(InvalidRequest, match="too deep") as caught:
        accepted(msgspec.json.Decoder(InstanceInfo).decode, deep_json)
    assert caught.value.code == "malformed_json"
    with pytest.raises(InvalidRequest, match="too deep"):
        decode_probed(b'{"x":' + b"[" * DEEP + b"]" * DEEP + b"}")
    deep = b"\x91" * DEEP + b"\x01"
    with pytest.raises(InvalidRequest):
        accepted(msgspec.msgpack.Decoder(InstanceInfo).decode, b"\x81\xa1x" + deep, "msgpack")
    with pytest.raises(InvalidRequest):
        decode_event_batch(b"\x92\xcb" + bytes(8) + b"\x91" + deep)
    for decode in (decode_message, decode_stored):
        with pytest.raises(InvalidRequest):
            decode(b"\x92\xa1a" + deep)


def test_without_a_name_the_only_model_with_workers_is_meant() -> None:
    registry = Registry(MasterConfig())
    registry.register(info("old", model="m-old"), 0.0)
    registry.register(info("typo", model="m-tpyo"), 0.0)
    with pytest.raises(ModelNotFound, match="name one"):
        registry.fleet("")
    registry.deregister(InstanceName("typo"))
    assert registry.fleet("").model == "m-old"
    registry.register(info("old", model="m-new"), 1.0)
    assert registry.fleet("").model == "m-new"
    registry.deregister(InstanceName("old"))
    with pytest.raises(Unavailable) as caught:
        registry.fleet("")
    assert caught.value.code == "no_worker"
    with pytest.raises(ModelNotFound):
        Registry(MasterConfig()).fleet("")


@pytest.mark.parametrize(
    "flag",
    ["lease=0", "lease=nan", "lease=inf", "request_ttl=0", "queue_timeout=0", "max_in_flight=0",
     "max_instances=0", "max_body_bytes=0", "probe_interval=-1", "probe_interval=0", "port=65536",
     "probe_failures=0", "max_queue=-1", "busy_kv_usage=2", "log_level=loud", "orphan_ttl=-1"],
)  # fmt: skip
def test_a_value_out_of_range_is_named(flag: str) -> None:
    name, value = flag.split("=")
    flag, variable = f"--{name.replace('_', '-')}", f"TRIPTYCH_{name.upper()}"
    with pytest.raises(ConfigError, match=f"^{flag}: "):
        resolve(MasterConfig, [f"{flag}={value}"], {})
    with pytest.raises(ConfigError, match=f"^{variable}: "):
        resolve(MasterConfig, [], {variable: value})


def test_what_nought_switches_off_and_other_edges_are_taken() -> None:
    flags = ["--busy-requests=0", "--busy-queue-ms=0", "--busy-kv-usage=0", "--breaker-failures=0",
             "--max-queue=0", "--port=0", "--log-level=WARNING"]  # fmt: skip
    assert resolve(MasterConfig, flags, {}).log_level == "warning"
    assert resolve(MasterConfig, [], {}) == MasterConfig()
