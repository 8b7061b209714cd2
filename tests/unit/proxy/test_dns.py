"""Workers found by DNS: named, added, kept and removed."""

import pytest

from protocol.errors import ConfigError
from protocol.settings import resolve
from proxy.config import ProxyConfig
from proxy.fleet.dns import DnsFollower, DnsName, look_up, names_of
from proxy.fleet.fleet import Fleet
from proxy.fleet.from_flags import make_fleet
from proxy.worker_options import split_urls

ENCODE, DECODE = DnsName("encode", "encode.svc", 8000), DnsName("decode", "decode.svc", 8000)


class Answers:
    """A resolver: addresses by name; a name without any has no answer."""

    def __init__(self, **hosts: set[str]) -> None:
        self.hosts = hosts

    async def __call__(self, host: str, port: int) -> set[str]:
        found = self.hosts.get(host.partition(".")[0])
        if found is None:
            raise OSError("no answer")
        return {f"http://{address}:{port}" for address in found}


def urls(fleet: Fleet) -> list[str]:
    return sorted(instance.url for instance in fleet.all())


def test_names_stand_beside_urls() -> None:
    found = split_urls("--x", "http://a:1, dns+http://encode.svc:8000/")
    assert found == (["http://a:1"], [("encode.svc", 8000)])
    config = ProxyConfig(decode_servers_urls="dns+http://decode.svc:8000")
    assert names_of(config) == [DECODE]
    assert make_fleet(config).decode == []  # they come when the name is looked up


@pytest.mark.parametrize(
    "word",
    ["dns+http://a", "dns+https://a:1", "dns+http://:1", "dns+http://a:x", "dns+http://a:1/b"],
)
def test_a_name_that_is_none_is_told_with_its_flag(word: str) -> None:
    with pytest.raises(ConfigError, match=r"^--encode-servers-urls: 'dns\+.*NAME:PORT$"):
        resolve(ProxyConfig, ["--encode-servers-urls", word], {})


async def test_new_addresses_are_probed_before_they_get_requests() -> None:
    fleet, answers = Fleet(), Answers(encode={"10.0.0.1"}, decode={"10.0.0.2"})
    dns = DnsFollower(fleet, [ENCODE, DECODE], answers)
    await dns.once()
    assert [(i.role, i.url, i.up) for i in fleet.all()] == [
        ("encode", "http://10.0.0.1:8000", False),
        ("decode", "http://10.0.0.2:8000", False),
    ]
    assert set(await fleet.doubtful(0.0)) == set(fleet.all())
    answers.hosts["encode"].add("10.0.0.3")
    await dns.once()
    assert len(fleet.encode) == 2 and len(fleet.decode) == 1


async def test_an_address_goes_when_two_answers_in_a_row_lack_it() -> None:
    fleet, answers = Fleet(), Answers(decode={"10.0.0.1", "10.0.0.2"})
    listed = fleet.add("http://by-flag:1", "decode")
    dns = DnsFollower(fleet, [DECODE], answers)
    await dns.once()
    answers.hosts["decode"] = {"10.0.0.2"}
    await dns.once()
    answers.hosts["decode"] = {"10.0.0.1", "10.0.0.2"}
    await dns.once()
    answers.hosts["decode"] = {"10.0.0.2"}
    await dns.once()
    assert len(fleet.decode) == 3
    await dns.once()
    assert urls(fleet) == ["http://10.0.0.2:8000", "http://by-flag:1"]
    assert not listed.removed


@pytest.mark.parametrize("draining", [False, True])
async def test_a_role_is_given_up_if_its_last_worker_drained(draining: bool) -> None:
    fleet, answers = Fleet(), Answers(decode={"10.0.0.1"})
    dns = DnsFollower(fleet, [DECODE], answers)
    await dns.once()
    fleet.decode[0].draining = draining
    answers.hosts["decode"] = set()
    for _ in range(2):
        await dns.once()
    assert not fleet.decode and ("decode" in fleet.roles) != draining


async def test_what_is_not_answered_changes_nothing_of_its_role() -> None:
    fleet, answers = Fleet(), Answers(encode={"10.0.0.1"}, decode={"10.0.0.2"})
    dns = DnsFollower(fleet, [ENCODE, DECODE], answers)
    await dns.once()
    del answers.hosts["encode"]
    answers.hosts["decode"] = {"10.0.0.3"}
    for _ in range(3):
        await dns.once()
    assert urls(fleet) == ["http://10.0.0.1:8000", "http://10.0.0.3:8000"]


async def test_a_name_of_this_machine_is_looked_up() -> None:
    assert "http://127.0.0.1:8000" in await look_up("localhost", 8000)
