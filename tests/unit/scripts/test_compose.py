"""deploy/compose.yaml: commands that our processes take, ports and names that fit together."""

import json
from typing import Any

import pytest

from protocol.settings import resolve
from proxy.config import ProxyConfig
from scripts.compose_processes import FILE, PROFILES, containers
from services.master.config import MasterConfig
from services.worker.config import WorkerConfig
from triptych.commands import COMMANDS

CONFIGS: dict[str, type[Any]] = {"master": MasterConfig, "proxy": ProxyConfig}
ROLES = {
    "1e1p1d": ["decode", "encode", "prefill"],
    "2e1p1d": ["decode", "encode", "encode", "prefill"],
    "e-pd": ["decode", "encode"],
}


@pytest.mark.parametrize("profile", PROFILES)
def test_every_command_and_variable_is_taken(profile: str) -> None:
    ours = [each for each in containers(profile, {}) if each.is_ours]
    for each in ours:
        assert each.command[1] in COMMANDS
        assert all(isinstance(value, str) for value in each.environment.values())
        config = CONFIGS.get(each.command[1], WorkerConfig)
        taken = resolve(config, each.command[2:], each.environment)
        assert str(taken.port) == each.port
        assert each.name != "proxy" or taken.log_requests
    workers = sorted(each.command[1] for each in ours if each.command[1] not in CONFIGS)
    assert workers == ROLES[profile]


@pytest.mark.parametrize("profile", PROFILES)
def test_ports_are_free_of_each_other_probed_and_scraped(profile: str) -> None:
    ours = [each for each in containers(profile, {}) if each.is_ours]
    ports = [each.port for each in ours]
    assert len(set(ports)) == len(ports)
    (listed,) = json.loads((FILE.parent / "prometheus" / f"{profile}.json").read_text())
    assert sorted(listed["targets"]) == sorted(f"127.0.0.1:{port}" for port in ports)
    for each in ours:
        test = each.whole.get("healthcheck", {}).get("test")
        assert test is None or f":{each.port}/ready" in test[-1]


@pytest.mark.parametrize("profile", PROFILES)
def test_what_is_referred_to_is_there(profile: str) -> None:
    found = containers(profile, {})
    names = {each.name for each in found}
    for each in found:
        assert set(each.whole.get("depends_on", ())) <= names
        shared = [each.whole.get("network_mode"), each.whole.get("ipc")]
        assert {s.partition(":")[2] for s in shared if s and ":" in s} <= names
        for volume in each.whole.get("volumes", ()):
            assert (FILE.parent / volume.split(":")[0]).exists(), volume


def test_variables_replace_the_defaults() -> None:
    found = {each.name: each for each in containers("e-pd", {"MEMORY_D": "0.5", "MODEL": "/m"})}
    assert "0.5" in found["decode-0"].command
    assert found["decode-0"].environment["TRIPTYCH_MODEL"] == "/m"
