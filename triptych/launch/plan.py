"""Which processes make a stack: names, commands, variables, addresses. Starts nothing."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import triptych
from protocol.errors import ConfigError
from services.frontend.config import FrontendConfig
from services.frontend.model_folder import find_model
from services.frontend.model_info import ModelInfo
from services.frontend.render import Frontend
from triptych.launch.options import ServeConfig

LOOPBACK = "127.0.0.1"
_ROOT = Path(triptych.__file__).parents[1]
# A client that uses its connection again within this time is told to open another one; closed at
# once, the connection would be lost together with a request that is on its way.
_PROXY_DRAINS_S = 1.0
_WEIGHTS = ("*.safetensors", "*.bin")


@dataclass(frozen=True)
class Service:
    """One process, up once `url`/health answers 200. It inherits `sockets`, by number."""

    name: str
    command: tuple[str, ...]
    url: str
    environment: Mapping[str, str] = field(default_factory=dict)  # beside the launcher's own
    sockets: tuple[int, ...] = ()


@dataclass(frozen=True)
class Role:
    """The workers of one role."""

    name: str  # of the role
    module: str  # Python module that is run
    count: int  # number of workers
    port: int  # of the first one
    devices: tuple[str, ...]  # dealt out to the workers in turn
    memory: float  # share of a GPU's

    @property
    def urls(self) -> list[str]:
        return [f"http://{LOOPBACK}:{self.port + i}" for i in range(self.count)]

    def device(self, number: int) -> str:
        return self.devices[number % len(self.devices)]


def takes_media(folder: Path) -> bool:
    """Whether the model has something to encode; errors as of `takes_pictures`."""
    return _info_of(folder).has_media


def takes_pictures(folder: Path) -> bool:
    """Whether the model does; `ConfigError` if it cannot be served at all."""
    return _info_of(folder).has_pictures


def _info_of(folder: Path) -> ModelInfo:
    info = Frontend.load(FrontendConfig(model=folder)).info
    if not any(file for pattern in _WEIGHTS for file in folder.glob(pattern)):
        raise ConfigError(f"--model: {folder} has no weights ({', '.join(_WEIGHTS)})")
    return info


def roles(config: ServeConfig, *, media: bool) -> dict[str, Role]:
    """Encode, prefill, decode and any, in this order; a role may have no workers."""
    split = not config.num_any
    return {
        "encode": Role(
            "encode", "services.encoder", split * config.num_e * media, config.encode_port,
            _listed(config.gpu_e), config.gpu_memory_e,
        ),
        "prefill": Role(
            "prefill", "services.prefill", split * config.num_p, config.prefill_port,
            _listed(config.gpu_p), config.gpu_memory_p,
        ),
        "decode": Role(
            "decode", "services.decode", split * config.num_d, config.decode_port,
            _listed(config.gpu_d), config.gpu_memory_d,
        ),
        "any": Role(
            "any", "services.pdfusion.any", config.num_any, config.any_port,
            _listed(config.gpu_any), config.gpu_memory_any,
        ),
    }  # fmt: skip


def _listed(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip()) or ("0",)


def shared_environment(workers: int) -> dict[str, str]:
    """Variables of every process that are not set yet. The processes run the launcher's own code,
    not code of the working directory."""
    cores = os.cpu_count() or 1
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH", ""))))
    defaults = {
        # The model has been found on this machine: nothing is to be asked of the hub.
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        # The sockets of two stacks on one machine must not meet.
        "TRIPTYCH_NAMESPACE": f"serve-{os.getpid()}",
        # On a CPU the workers share the cores; threads beyond them only wait for one another. See
        # `_shared_cores` for those that others leave.
        "OMP_NUM_THREADS": str(max(1, cores // max(1, workers))),
    }
    return {**{k: v for k, v in defaults.items() if k not in os.environ}, "PYTHONPATH": path}


def python(module: str, *flags: str) -> tuple[str, ...]:
    # -P: else Python would look for modules in the working directory first.
    return (sys.executable, "-P", "-m", module, *flags)


def master(config: ServeConfig, admin_key: str) -> Service:
    flags = ("--host", LOOPBACK, "--port", str(config.master_port), *_ending(config))
    command = python("services.master", *flags, *shlex.split(config.master_flags))
    return Service("master", command, config.master_url, {"ADMIN_API_KEY": admin_key})


def proxy(
    config: ServeConfig, parts: Mapping[str, Role], admin_key: str, socket: int = 0
) -> Service:
    """`socket`: the number of the one it is to listen on, 0 for one of its own."""
    lists = [
        word
        for role in parts.values()
        if role.name != "any"  # those the master names
        for word in (f"--{role.name}-servers-urls", ",".join(role.urls))
    ]
    flags = (
        "--model", config.model, "--host", config.host, "--port", str(config.port),
        "--master-url", config.master_url, *lists, *_ending(config, _PROXY_DRAINS_S),
    )  # fmt: skip
    command = python("proxy", *flags, "--fd", str(socket), *shlex.split(config.proxy_flags))
    # The variable or a flag of the proxy turns these lines off.
    lines = os.environ.get("TRIPTYCH_LOG_REQUESTS", "true")
    environment = {"ADMIN_API_KEY": admin_key, "TRIPTYCH_LOG_REQUESTS": lines}
    return Service(
        "proxy", command, address(config), environment, sockets=(socket,) if socket else ()
    )


def address(config: ServeConfig) -> str:
    """The proxy's URL as this machine reaches it."""
    host = {"0.0.0.0": LOOPBACK, "::": "[::1]"}.get(config.host, config.host)
    return f"http://{host}:{config.port}"


def workers(config: ServeConfig, parts: Mapping[str, Role]) -> Iterator[Service]:
    """Those of our own engine."""
    for role in parts.values():
        kv = () if role.name == "encode" else ("--kv-transfer-config", config.kv_transport)
        for i, url in enumerate(role.urls):
            flags = (
                "--model", config.model, "--host", LOOPBACK, "--port", str(role.port + i),
                "--max-num-seqs", str(config.max_num_seqs),
                "--max-model-len", str(config.max_model_len),
                "--gpu-memory-utilization", str(role.memory),
                "--ec-transfer-config", _ec_transport(config), *kv,
                "--master-url", config.master_url, *_shared_cores(), *_ending(config),
            )  # fmt: skip
            command = python(role.module, *flags, *shlex.split(config.worker_flags))
            devices = {config.affinity: role.device(i)}
            yield Service(f"{role.name}-{i}", command, url, devices)


def _shared_cores() -> tuple[str, ...]:
    """The flag by which workers use more cores than their share, unless OMP_NUM_THREADS is set."""
    return () if "OMP_NUM_THREADS" in os.environ else ("--share-cores",)


def mock_workers(config: ServeConfig, parts: Mapping[str, Role]) -> Iterator[Service]:
    """Those without a model; content keys are the real ones."""
    folder = find_model(config.model)
    for role in parts.values():
        fused = role.name == "decode" and not parts["prefill"].count
        for i, url in enumerate(role.urls):
            flags = (
                "--role", "prefill_decode" if fused else role.name,
                "--model", str(folder), "--served-model-name", config.model,
                "--host", LOOPBACK, "--port", str(role.port + i),
                "--max-num-seqs", str(config.max_num_seqs), "--master-url", config.master_url,
                *_ending(config),
            )  # fmt: skip
            command = python("services.mock", *flags, *shlex.split(config.worker_flags))
            yield Service(f"{role.name}-{i}", command, url)


def _ec_transport(config: ServeConfig) -> str:
    if config.ec_transport != "shared_storage":
        return config.ec_transport
    extra = {"shared_storage_path": config.ec_shared_storage_path}
    return json.dumps({"ec_connector": "shared_storage", "ec_connector_extra_config": extra})


def _ending(config: ServeConfig, least_delay_s: float = 0.0) -> tuple[str, ...]:
    """How the proxy, the master and our workers end."""
    return ("--drain-delay", str(max(config.drain_delay, least_delay_s)),
            "--shutdown-timeout", str(config.shutdown_timeout))  # fmt: skip
