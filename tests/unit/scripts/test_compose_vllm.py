"""deploy/compose.vllm.yaml: vLLM's flags are those that `triptych serve` gives, ours are taken, and
the master is told of the workers that there are."""

import json
from typing import Any

import pytest

from protocol.settings import resolve
from proxy.config import ProxyConfig
from scripts.compose_processes import VLLM_FILE, containers
from services.master.config import MasterConfig
from services.master.fleet.added_workers import decode_probed
from triptych.launch.list_workers import ListConfig, read_workers
from triptych.launch.options import ServeConfig
from triptych.launch.plan import LOOPBACK, roles
from triptych.launch.vllm import vllm_workers

CONFIGS: dict[str, type[Any]] = {"master": MasterConfig, "proxy": ProxyConfig, "list": ListConfig}
WORKERS = ("encode", "prefill", "decode")
LISTED = VLLM_FILE.parent / "vllm" / "workers.json"


def found() -> dict[str, Any]:
    return {each.name: each for each in containers("", {"ADMIN_API_KEY": "secret"}, VLLM_FILE)}


def vllm_flags(name: str) -> dict[str, str]:
    _, *flags = found()[name].command
    return {flag: value for flag, _, value in (word.partition("=") for word in flags)}


def test_our_commands_and_variables_are_taken() -> None:
    for name, config in CONFIGS.items():
        each = found()[name]
        assert each.command[:2] == ("triptych", name)
        taken = resolve(config, each.command[2:], each.environment)
        assert name != "proxy" or taken.log_requests
        if name == "list":
            assert taken.workers == "/workers.json" and taken.admin_api_key == "secret"
            assert f"./vllm/{LISTED.name}:{taken.workers}:ro" in each.whole["volumes"]


@pytest.mark.parametrize("environ", [{}, {"ADMIN_API_KEY": ""}])
def test_an_admin_key_must_be_given(environ: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="ADMIN_API_KEY: set it"):
        containers("", environ, VLLM_FILE)


def test_workers_have_the_flags_of_triptych_serve() -> None:
    config = ServeConfig(engine="vllm")
    parts = roles(config, media=True)
    ours = {service.name: service.command for service in vllm_workers(config, parts)}
    for name in WORKERS:
        words, theirs = ours[f"{name}-0"], vllm_flags(name)
        wanted = {word for word in words if word.startswith("--")} - {"--max-num-seqs"}
        assert theirs.keys() == wanted - {"--served-model-name"}, name
        for flag in (flag for flag in theirs if flag.endswith("-config")):
            given = json.loads(words[words.index(flag) + 1])
            assert json.loads(theirs[flag]).keys() == given.keys(), f"{name} {flag}"


def test_the_master_is_told_of_these_workers() -> None:
    listed = {each["role"]: each for each in read_workers(str(LISTED))}
    assert listed.keys() == set(WORKERS)
    for name, each in listed.items():
        decode_probed(json.dumps(each).encode())
        flags = vllm_flags(name)
        assert each["url"] == f"http://{LOOPBACK}:{flags['--port']}"
        assert ("--kv-events-config" in flags) == (name != "encode")
        events = [json.loads(flags["--kv-events-config"])] if name != "encode" else []
        named = [[one["endpoint"], one["replay_endpoint"]] for one in events]
        there = [[address.replace("*", LOOPBACK) for address in pair] for pair in named]
        assert there == [[one["endpoint"], one["replay"]] for one in each["events"]]


def test_names_ports_and_files_fit_together() -> None:
    services = found()
    ports = [vllm_flags(name)["--port"] for name in WORKERS]
    ports += [services[name].port for name in ("master", "proxy")]
    sides = [services[n].environment["VLLM_NIXL_SIDE_CHANNEL_PORT"] for n in WORKERS[1:]]
    assert len(set(ports + sides)) == len(ports + sides)
    (scraped,) = json.loads((VLLM_FILE.parent / "prometheus" / "1e1p1d.json").read_text())
    assert sorted(scraped["targets"]) == sorted(f"{LOOPBACK}:{port}" for port in ports)
    for each in services.values():
        assert set(each.whole.get("depends_on", ())) <= services.keys()
        for volume in each.whole.get("volumes", ()):
            source = volume.split(":")[0]
            assert not source.startswith("./") or (VLLM_FILE.parent / source).exists(), volume
