"""The compose files' ports: this machine alone reaches them, or what asks for a key."""

import logging
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ConfigError
from protocol.settings import resolve
from proxy.config import ProxyConfig
from scripts.compose_processes import DNS_FILE, FILE, VLLM_FILE, Container, containers
from services.http.access import check_reach

FILES = (FILE, DNS_FILE, VLLM_FILE)
API_PORT = "10001"
files = pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])


def found(file: Path, variables: dict[str, str]) -> dict[str, Container]:
    variables = {"ADMIN_API_KEY": "a-secret", **variables}  # that one of them asks for
    return {each.name: each for each in containers("1e1p1d", variables, file)}


def published(services: dict[str, Container]) -> dict[str, str]:
    """Ports of containers, and the addresses of the host that lead there."""
    lines = [line for each in services.values() for line in each.whole.get("ports", ())]
    return {port: host for host, _, port in (line.rsplit(":", 2) for line in lines)}


def check(services: dict[str, Container]) -> None:
    """As the proxy does at its start."""
    proxy = services["proxy"]
    config: Any = resolve(ProxyConfig, proxy.words[2:], proxy.environment)
    given, addresses = bool(config.read_api_keys()), [("--host", config.host)]
    assert addresses == [("--host", "0.0.0.0")]
    check_reach(logging.getLogger(), "--api-key", given, addresses, config.allow_unprotected)


@files
def test_without_variables_only_this_machine_reaches_the_ports(file: Path) -> None:
    services = found(file, {})
    assert set(published(services).values()) == {"127.0.0.1"} and API_PORT in published(services)
    check(services)


@files
def test_others_reach_the_api_alone_and_only_with_a_key(file: Path) -> None:
    services = found(file, {"BIND": "0.0.0.0"})
    open_to_all = [port for port, host in published(services).items() if host != "127.0.0.1"]
    assert open_to_all == [API_PORT], "Prometheus asks for no key, Grafana has a known one"
    with pytest.raises(ConfigError, match="asks for no key"):
        check(services)
    check(found(file, {"BIND": "0.0.0.0", "API_KEY": "a-key"}))


@files
def test_a_key_is_asked_for_wherever_it_is_given(file: Path) -> None:
    proxy = found(file, {"API_KEY": "one,two"})["proxy"]
    config: Any = resolve(ProxyConfig, proxy.words[2:], proxy.environment)
    assert config.read_api_keys() == ["one", "two"]
