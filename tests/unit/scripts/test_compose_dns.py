"""deploy/compose.dns.yaml: workers that compose scales, found by DNS."""

import os
import shlex
import subprocess
from functools import cache
from typing import Any

import pytest

from connectors.config import parse_ec, parse_kv
from protocol.settings import resolve
from proxy.config import ProxyConfig
from proxy.fleet.dns import names_of
from scripts.compose_processes import DNS_FILE, Container, at_own_ports, containers
from services.worker.config import WorkerConfig
from triptych.commands import COMMANDS
from triptych.launch.plan import LOOPBACK

ROLES = ("encode", "prefill", "decode")


@cache
def found() -> dict[str, Container]:
    return {each.name: each for each in containers("dns", {"MEMORY_D": "0.5"}, DNS_FILE)}


def taken(container: Container) -> Any:
    config = ProxyConfig if container.name == "proxy" else WorkerConfig
    assert container.words[1] in COMMANDS
    return resolve(config, container.words[2:], container.environment)


def test_the_proxys_names_are_those_of_services_and_their_ports() -> None:
    services = found()
    names = {name.role: (name.host, name.port) for name in names_of(taken(services["proxy"]))}
    assert names == {role: (role, taken(services[role]).port) for role in ROLES}
    assert taken(services["proxy"]).log_requests


@pytest.mark.parametrize("role", ROLES)
def test_a_worker_is_taken_at_its_containers_address(role: str) -> None:
    worker = taken(found()[role])
    assert parse_ec(worker.ec_transfer_config).host == LOOPBACK
    if role != "encode":
        assert parse_kv(worker.kv_transfer_config).host == LOOPBACK
    if role == "decode":
        assert worker.gpu_memory_utilization == 0.5


@pytest.mark.parametrize("role", ROLES)
def test_a_scaled_service_takes_nothing_that_one_container_alone_can_have(role: str) -> None:
    whole = found()[role].whole
    assert not {"ports", "container_name", "hostname", "network_mode"} & whole.keys()
    assert whole["ipc"] == "service:memory" and "memory" in found()


@pytest.mark.parametrize("role", ROLES)
def test_a_shell_makes_the_same_words(role: str, tmp_path: Any) -> None:
    """Of compose's `$$` it sees one; `hostname` and `triptych` are stand-ins here."""
    for name, script in (("hostname", f"echo {LOOPBACK}"), ("triptych", 'printf "%s\\n" "$@"')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    container = found()[role]
    command = [word.replace("$$", "$") for word in container.command]
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, env={"PATH": path}, capture_output=True, text=True, check=True, timeout=20
    )
    assert done.stdout.splitlines() == list(container.words[1:]), shlex.join(command)


def test_as_processes_they_have_ports_of_their_own() -> None:
    moved = {
        each.name: each
        for each in at_own_ports([each for each in found().values() if each.is_ours])
    }
    ports = {name: taken(each).port for name, each in moved.items()}
    assert len(set(ports.values())) == 4
    names = {name.role: (name.host, name.port) for name in names_of(taken(moved["proxy"]))}
    assert names == {role: ("localhost", ports[role]) for role in ROLES}
