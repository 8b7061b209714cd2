"""`vllm serve` workers with the connectors of vLLM's own disaggregated example, their KV events,
and the master told of them, as they cannot register."""

from __future__ import annotations

import json
import shlex
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from protocol.errors import ConfigError
from services.frontend.model_folder import find_model
from triptych.launch.options import ServeConfig
from triptych.launch.plan import LOOPBACK, Role, Service

_WAIT_S = 60.0
_POLL_S = 0.1
# Room for the largest picture of Qwen's processors in one encoder run, as in vLLM's example.
_ENCODE_TOKENS = "114688"


def check(config: ServeConfig) -> None:
    """`ConfigError` if vLLM's workers cannot be started or listed."""
    if shutil.which(config.vllm) is None:
        raise ConfigError(
            f"VLLM={config.vllm} is no executable: install vLLM in an environment of its own, then"
            " --vllm .../bin/vllm or VLLM=.../bin/vllm"
        )
    if not config.master:
        raise ConfigError("ENGINE=vllm needs the master: MASTER=1")


def vllm_workers(config: ServeConfig, parts: Mapping[str, Role]) -> Iterator[Service]:
    """All roles; workers are numbered over all of them for their events and side channels."""
    folder, number = str(find_model(config.model)), 0
    named = () if folder == config.model else ("--served-model-name", config.model)
    for role in parts.values():
        for i, url in enumerate(role.urls):
            command = (
                config.vllm, "serve", folder, *named,
                "--host", LOOPBACK, "--port", str(role.port + i),
                "--gpu-memory-utilization", str(role.memory),
                *_flags(config, role.name, parts, number), *shlex.split(config.vllm_flags),
            )  # fmt: skip
            environment = {
                config.affinity: role.device(i),
                "VLLM_NIXL_SIDE_CHANNEL_PORT": str(config.side_port + number),
            }
            yield Service(f"{role.name}-{i}", command, url, environment)
            number += 1


def _flags(config: ServeConfig, role: str, parts: Mapping[str, Role], number: int) -> list[str]:
    flags = ["--enforce-eager", "--enable-request-id-headers"]
    flags += ["--max-num-seqs", str(config.max_num_seqs)]
    if config.max_model_len:
        flags += ["--max-model-len", str(config.max_model_len)]
    if role == "encode":
        flags += ["--no-enable-prefix-caching", "--max-num-batched-tokens", _ENCODE_TOKENS]
        return [*flags, "--ec-transfer-config", _ec_config(config, "ec_producer")]
    flags += ["--kv-events-config", _events_config(config, number)]
    if parts["encode"].count:
        flags += ["--ec-transfer-config", _ec_config(config, "ec_consumer")]
    if parts["prefill"].count:
        flags += ["--kv-transfer-config", _kv_config(config)]
    return flags


def _ec_config(config: ServeConfig, role: str) -> str:
    extra = {"shared_storage_path": config.ec_shared_storage_path}
    return json.dumps(
        {"ec_connector": "ECExampleConnector", "ec_role": role, "ec_connector_extra_config": extra}
    )


def _kv_config(config: ServeConfig) -> str:
    """kv_both, so that a decode worker can also prefill."""
    device = config.vllm_kv_buffer_device
    buffer = {"kv_buffer_device": device} if device else {}
    return json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_both", **buffer})


def _events_config(config: ServeConfig, number: int) -> str:
    events, replay = _event_endpoints(config, number, "*")
    return json.dumps(
        {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": events,
            "replay_endpoint": replay,
        }
    )


def _event_endpoints(config: ServeConfig, number: int, host: str) -> tuple[str, str]:
    port = config.events_port + 2 * number
    return f"tcp://{host}:{port}", f"tcp://{host}:{port + 1}"


def listings(config: ServeConfig, parts: Mapping[str, Role]) -> list[dict[str, Any]]:
    """What the master is told of each worker."""
    found: list[dict[str, Any]] = []
    for role in parts.values():
        fused = role.name == "decode" and not parts["prefill"].count
        for url in role.urls:
            # Numbered as `vllm_workers` does, all roles in one row: ports follow from the number.
            events, replay = _event_endpoints(config, len(found), LOOPBACK)
            follows = [] if role.name == "encode" else [{"endpoint": events, "replay": replay}]
            name = "prefill_decode" if fused else role.name
            helps = name == "prefill" and config.vllm_prefill_encodes
            found.append({"role": name, "url": url, "events": follows, "encodes": helps})
    return found


def tell_master(master: str, admin_key: str, workers: Sequence[Mapping[str, Any]]) -> None:
    """List the workers, and wait until the master's probes find all well. `RuntimeError`."""
    try:
        for worker in workers:
            _call(master, admin_key, json.dumps(worker).encode())
        # Without the slash at its end, as the master shows it.
        _wait(master, admin_key, {worker["url"].rstrip("/") for worker in workers})
    except urllib.error.HTTPError as error:
        said = error.read().decode(errors="replace")
        raise RuntimeError(f"{master} refuses a worker: {said}") from error
    except OSError as error:
        raise RuntimeError(f"{master} cannot be reached: {error}") from error


def _wait(master: str, admin_key: str, urls: set[str]) -> None:
    deadline = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline:
        shown = json.loads(_call(master, admin_key))["instances"]
        if urls <= {entry["url"].rstrip("/") for entry in shown if entry["healthy"]}:
            return
        time.sleep(_POLL_S)
    errors = {entry["url"]: entry["error"] for entry in shown if not entry["healthy"]}
    raise RuntimeError(f"the master says that workers are not up after {_WAIT_S:g} s: {errors}")


def _call(master: str, admin_key: str, body: bytes | None = None) -> bytes:
    headers = {"content-type": "application/json", "x-api-key": admin_key}
    request = urllib.request.Request(f"{master}/instances", body, headers)
    with urllib.request.urlopen(request, timeout=30) as response:
        return bytes(response.read())
