"""Where workers may be that register."""

import asyncio
import socket
from typing import Any

import msgspec
import pytest

from protocol.errors import ConfigError, InvalidRequest, Unavailable
from protocol.kv_events import EventSource
from protocol.registry import InstanceInfo
from protocol.settings import resolve
from services.master.api.worker_networks import _WAITING, WorkerNetworks
from services.master.config import MasterConfig


def networks(*flags: str, keyed: bool = False) -> WorkerNetworks:
    return WorkerNetworks(resolve(MasterConfig, flags, {}), keyed=keyed)


async def taken(where: WorkerNetworks, url: str, *endpoints: str) -> bool:
    try:
        await where.check(url, [EventSource(endpoint) for endpoint in endpoints])
    except InvalidRequest as error:
        assert error.code in ("network_not_allowed", "bad_url"), error
        assert error.param and error.param in error.message
        return False
    return True


NEAR = ("http://127.0.0.1:1", "http://10.1.2.3", "https://172.31.0.1:8", "http://192.168.0.9:1",
        "http://[::1]:8000", "http://[fd00::1]:1", "http://worker-1:8000", "http://localhost:1",
        "http://[::ffff:10.0.0.1]:1")  # fmt: skip
NUMBERS = ("134744072", "0x08080808", "010.8.8.8", "8.526344", "0")  # 8.8.8.8, as resolvers read it
FAR = ("http://8.8.8.8:1", "http://172.32.0.1", "http://169.254.169.254/latest", "http://[2001:db8::1]:1",
       "http://[::ffff:8.8.8.8]:1", "http://0.0.0.0:1", "http://10.0.0.1@8.8.8.8:1")  # fmt: skip


@pytest.mark.parametrize("url", NEAR)
async def test_without_a_key_workers_are_near(url: str) -> None:
    assert await taken(networks(), url)


@pytest.mark.parametrize("url", FAR)
async def test_without_a_key_they_are_not_far(url: str) -> None:
    assert not await taken(networks(), url)
    assert await taken(networks(keyed=True), url)
    assert await taken(networks("--allowed-worker-networks", "any"), url)


@pytest.mark.parametrize("host", NUMBERS)
async def test_a_number_is_no_local_name(host: str) -> None:
    for where in (networks(), networks("--allowed-worker-networks", "127.0.0.1/32")):
        assert not await taken(where, f"http://{host}:80")
        assert not await taken(where, "http://127.0.0.1:1", f"tcp://{host}:5557")
    near = networks("--allowed-worker-networks", "127.0.0.1/32")
    assert await taken(near, "http://2130706433:1", "tcp://0x7f000001:5")


OTHER_FORMS = (
    "127.0.0.1:0;127.0.0.2:99", "*:5", "127.0.0.1:99999", "127.0.0.1@8.8.8.8:1", "8。8。8。8:1",
    "１３４７４４０７２:1", "[::1:5", "127.0.0.1 :5",
)  # fmt: skip


@pytest.mark.parametrize("address", OTHER_FORMS)
async def test_an_address_of_another_form_is_refused(address: str) -> None:
    where = networks("--allowed-worker-networks", "127.0.0.1/32,::1/128")
    assert not await taken(where, f"http://{address}")
    assert not await taken(where, "http://127.0.0.1:1", f"tcp://{address}")
    for other in ("tcp://127.0.0.1", "127.0.0.1:5", "tcp://127.0.0.1:5/8"):
        assert not await taken(where, "http://127.0.0.1:1", other)


@pytest.mark.parametrize("host", ["8.8.8.8", "[2001:db8::1]", "134744072", "127.0.0.1;8.8.8.8"])
async def test_all_that_others_are_sent_to_is_held_to_the_same(host: Any) -> None:
    where = networks()
    good = InstanceInfo("w", "prefill", "http://127.0.0.1:1", "m", kv_endpoint=at("remote_host"),
                        ec_endpoint=at("peer_host"), ec_zmq_addrs=["tcp://10.0.0.1:7"])  # fmt: skip
    await where.check_worker(good)
    for more in (
        {"kv_endpoint": at("remote_host", host)},
        {"ec_endpoint": at("peer_host", host)},
        {"ec_zmq_addrs": ["tcp://10.0.0.1:7", f"tcp://{host}:8"]},
    ):
        ((name, _),) = more.items()
        with pytest.raises(InvalidRequest, match=name) as caught:
            await where.check_worker(msgspec.structs.replace(good, **more))
        assert caught.value.code == "network_not_allowed"


def at(field: str, host: Any = "worker-1") -> dict[str, Any]:
    return {field: host, "port": 5}


async def test_event_endpoints_are_held_to_the_same() -> None:
    here = "http://127.0.0.1:1"
    assert await taken(networks(), here, "tcp://10.0.0.1:5", "tcp://worker-1:6")
    assert not await taken(networks(), here, "tcp://10.0.0.1:5", "tcp://8.8.8.8:6")
    for local in ("ipc:///run/secret", "inproc://zeromq.zap.01"):
        assert not await taken(networks(), here, local)
    where = networks()
    with pytest.raises(InvalidRequest):
        await where.check(here, [EventSource("tcp://10.0.0.1:5", "tcp://8.8.8.8:6")])


async def test_a_flag_says_where_key_or_not() -> None:
    for keyed in (True, False):
        where = networks("--allowed-worker-networks", "203.0.113.0/24, 2001:db8::/32", keyed=keyed)
        assert await taken(where, "http://203.0.113.9:1", "tcp://[2001:db8::5]:1")
        assert not await taken(where, "http://127.0.0.1:1")
    assert await taken(networks("--host", "198.51.100.7"), "http://198.51.100.7:9")


@pytest.mark.parametrize("text", ["10.0.0.0/33", "nonsense", "10.0.0.1/8"])
def test_what_is_no_network_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--allowed-worker-networks.*no network"):
        networks("--allowed-worker-networks", text)


async def test_lookups_that_have_ended_leave_room_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As many at once as are allowed, then again, whether or not the names are known."""
    monkeypatch.setattr("services.master.api.worker_networks._LOOKUP_S", 60.0)
    where = networks()

    def look_up(host: str, *args: Any, **more: Any) -> list[Any]:
        if host.startswith("no"):
            raise socket.gaierror(-2, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    for kind in ("no", "yes", "yes"):
        names = [f"http://{kind}{n}.example:1" for n in range(_WAITING)]
        found = await asyncio.gather(*(taken(where, name) for name in names))
        assert found == [kind == "yes"] * _WAITING
    names = [f"http://yes{n}.example:1" for n in range(_WAITING + 1)]
    asked = (taken(where, name) for name in names)
    told = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(one) for one in told if one is not True] == [Unavailable]


async def test_all_addresses_of_a_name_count(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"in.example": ["10.0.0.1"], "both.example": ["10.0.0.1", "8.8.8.8"]}

    def look_up(host: str, *args: Any, **more: Any) -> list[Any]:
        if host not in known:
            raise socket.gaierror(-2, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (a, 0)) for a in known[host]]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    where = networks()
    assert await taken(where, "http://in.example:1")
    assert not await taken(where, "http://both.example:1")
    assert not await taken(where, "http://nowhere.example:1")
