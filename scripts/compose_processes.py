"""`python -m scripts.compose_processes [PROFILE]`: start the commands of deploy/compose.yaml, or
with `dns` those of deploy/compose.dns.yaml, as processes of this machine, ask the proxy, end them.
A check of these files without a container engine.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from triptych.launch.plan import LOOPBACK, Service, python, shared_environment
from triptych.launch.processes import LaunchError, Processes

FILE = Path(__file__).parents[1] / "deploy" / "compose.yaml"
VLLM_FILE = FILE.with_name("compose.vllm.yaml")
DNS_FILE = FILE.with_name("compose.dns.yaml")
PROFILES = ("1e1p1d", "2e1p1d", "e-pd")
DNS = "dns"
_VARIABLE = re.compile(r"\$\{(\w+)(?::([-+?])([^}]*))?\}")
_READY_S, _STOP_S = 300.0, 40.0
_FOLLOW_S = 6.0  # in which the proxy hears of all workers, from the master or at its next look-up
_FIRST_PORT = 8001


@dataclass(frozen=True)
class Container:
    """A service of the file as a profile has it, its variables replaced."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    whole: Mapping[str, Any]

    @property
    def words(self) -> tuple[str, ...]:
        """The command; where a shell gives it the container's address, with the loopback one."""
        if self.command[:2] != ("sh", "-c"):
            return self.command
        executed = self.command[2].partition("exec ")[2]
        return tuple(shlex.split(executed.replace("$$ip", LOOPBACK)))

    @property
    def is_ours(self) -> bool:
        return self.words[:1] == ("triptych",)

    @property
    def port(self) -> str:
        return self.words[self.words.index("--port") + 1]


def containers(profile: str, environ: Mapping[str, str], file: Path = FILE) -> list[Container]:
    """Those that `docker compose --profile PROFILE up` starts."""
    text = file.read_text(encoding="utf-8")
    variables = {**environ, "COMPOSE_PROFILES": profile}
    text = _VARIABLE.sub(lambda found: _replacement(found, variables), text)
    return [
        Container(
            name, tuple(entry.get("command", ())), _texts(entry.get("environment", {})), entry
        )
        for name, entry in yaml.safe_load(text)["services"].items()
        if profile in entry.get("profiles", [profile])
    ]


def _replacement(found: re.Match[str], variables: Mapping[str, str]) -> str:
    """As compose has it: `:-` says what stands for no value, `:+` what stands for any. `ValueError`
    with the words after `:?` if there is no value."""
    value, other = variables.get(found[1], ""), found[3] or ""
    if found[2] == "+":
        return other if value else ""
    if found[2] == "?" and not value:
        raise ValueError(f"{found[1]}: {other}")
    return value or other


def _texts(environment: Mapping[str, object]) -> dict[str, str]:
    """Values as compose has them, which replaces variables once YAML has been read."""
    return {name: str(value) for name, value in environment.items()}


def at_own_ports(found: Sequence[Container]) -> list[Container]:
    """Containers with addresses of their own, as processes of one machine: each worker at another
    port, where the proxy's names for DNS lead."""
    moved = {each.name: str(_FIRST_PORT + at) for at, each in enumerate(found)}
    names = {f"//{each.name}:{each.port}": f"//localhost:{moved[each.name]}" for each in found}
    return [replace(each, command=_moved(each, moved[each.name], names)) for each in found]


def _moved(container: Container, port: str, names: Mapping[str, str]) -> tuple[str, ...]:
    at = container.words.index("--port") + 1
    words = [*container.words[:at], port, *container.words[at + 1 :]]
    for name, address in names.items():
        words = [word.replace(name, address) for word in words]
    return tuple(words)


def main(argv: Sequence[str]) -> int:
    """Exit status: 0 if all came up and the proxy answered."""
    profile = argv[0] if argv else PROFILES[0]
    by_dns = profile == DNS
    found = [
        each
        for each in containers(profile, os.environ, DNS_FILE if by_dns else FILE)
        if each.is_ours
    ]
    logs = Path("logs")
    logs.mkdir(exist_ok=True)
    processes = Processes(logs, shared_environment(len(found) - 2), print)
    services = {each.name: _process(each) for each in (at_own_ports(found) if by_dns else found)}
    try:
        if not by_dns:
            processes.start([_redis(profile)])
            _up(processes, [services.pop("master")])
        _up(processes, list(services.values()))
        print(f"{profile}: all up after {processes.age:.1f} s")
        time.sleep(_FOLLOW_S)
        url = services["proxy"].url
        processes.run("asking", python("benchmarks.ask", "--base-url", url))
        print(f"{profile}: all answered after {processes.age:.1f} s")
    except LaunchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        processes.stop(_STOP_S)
    return 0


def _up(processes: Processes, services: Sequence[Service]) -> None:
    processes.start(services)
    processes.wait_ready(services, _READY_S)


def _process(container: Container) -> Service:
    command = python("triptych", *container.words[1:])
    url = f"http://127.0.0.1:{container.port}"
    return Service(container.name, command, url, container.environment)


def _redis(profile: str) -> Service:
    (redis,) = (each for each in containers(profile, {}) if each.name == "redis")
    beside = Path(sys.executable).with_name("redis-server")
    program = shutil.which("redis-server") or shutil.which(beside)
    if program is None:
        raise LaunchError("no redis-server: EXTRAS=dev scripts/setup.sh brings one")
    return Service("redis", (program, *redis.command[1:]), "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
