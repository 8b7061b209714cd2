"""Which connector a worker uses: vLLM's JSON flags, or a short name of a transport."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from protocol.errors import ConfigError

Transport = Literal["local", "shm", "shared_storage", "nixl", "ucx"]
_EC_NAMES: dict[str, Transport] = {
    "local": "local",
    "shm": "shm",
    "shared_storage": "shared_storage",
    "ECExampleConnector": "shared_storage",
    "ECSharedStorageConnector": "shared_storage",
    "ECShmConnector": "shm",
    "nixl": "nixl",
    "ECNixlConnector": "nixl",
    "ECCPUConnector": "nixl",
    "ucx": "ucx",
    "ECUcxConnector": "ucx",
}
_KV_NAMES: dict[str, Transport] = {
    "local": "local",
    "shm": "shm",
    "KVShmConnector": "shm",
    "nixl": "nixl",
    "NixlConnector": "nixl",
    "ucx": "ucx",
    "KVUcxConnector": "ucx",
    "shared_storage": "shared_storage",
    "SharedStorageConnector": "shared_storage",
    "ExampleConnector": "shared_storage",
}
_SHM = Path("/dev/shm")


_Bytes = Annotated[int, Meta(gt=0, lt=1 << 60)]
_Seconds = Annotated[float, Meta(gt=0, le=1e6)]
_Port = Annotated[int, Meta(ge=0, lt=1 << 16)]


class ECConfig(msgspec.Struct, frozen=True):
    """`--ec-transfer-config`. `ec_buffer_size` bounds, in bytes, a producer's store; `landing_size`
    what is on its way into a consumer, and once more what of it stays where it landed while it is
    in use: a consumer's region has twice as much. The side channel binds `host`:`port`, 0 for any
    free port.
    An entry that somebody was told of, or reads, is kept for `lease_s`; a consumer waits for one up
    to `load_timeout_s`. Producers on this host are found in `path`, others by `peers`. Shared
    storage has its root at `path`."""

    transport: Transport = "local"
    role: Literal["ec_producer", "ec_consumer", "ec_both"] = "ec_both"
    ec_buffer_size: _Bytes = 1_000_000_000
    landing_size: _Bytes = 256 << 20
    host: str = "127.0.0.1"
    port: _Port = 0
    lease_s: _Seconds = 30.0
    load_timeout_s: _Seconds = 30.0
    timeout_s: _Seconds = 20.0
    path: str = ""
    peers: tuple[tuple[str, _Port], ...] = ()


class KVConfig(msgspec.Struct, frozen=True):
    """`--kv-transfer-config`. The side channel binds `host`:`port`, 0 for any free
    port. `lease_s` without a heartbeat ends an offer; `timeout_s` bounds handshakes and silence.
    `buffer_device`, of a pool on a GPU: "cuda" hands its memory to peers, "cpu" copies it through
    the host's, "" does the one where the transport can and the other where it cannot. `staged`:
    copied in any case, also on a CPU."""

    transport: Transport = "local"
    role: str = "kv_both"
    host: str = "127.0.0.1"
    port: _Port = 0
    lease_s: _Seconds = 30.0
    timeout_s: _Seconds = 20.0
    load_failure_policy: Literal["recompute", "fail"] = "recompute"
    buffer_device: Literal["", "cpu", "cuda"] = ""
    staged: bool = False
    path: str = ""


def namespace_dir(name: str | None = None) -> Path:
    """The folder in which this user's engines find each other; `name`, by default of the variable
    TRIPTYCH_NAMESPACE, keeps stacks apart. It holds sockets and small files; containers that share
    it can share memory. `ConfigError` if the name is none."""
    name = os.environ.get("TRIPTYCH_NAMESPACE", "default") if name is None else name
    if not name.replace("-", "").replace("_", "").isalnum():
        raise ConfigError("TRIPTYCH_NAMESPACE: only letters, digits, '-' and '_' are allowed")
    usable = os.access(_SHM, os.W_OK | os.X_OK)
    return (_SHM if usable else Path(tempfile.gettempdir())) / f"triptych-{os.getuid()}-{name}"


def drop_namespace() -> None:
    """Remove the namespace's folder if nothing is left in it."""
    with contextlib.suppress(OSError):
        namespace_dir().rmdir()


def parse_ec(text: str) -> ECConfig:
    """A transport's name or vLLM's JSON object. `ConfigError` names what is wrong."""
    fields = _object("--ec-transfer-config", text, "ec_connector")
    extra = _extra("--ec-transfer-config", fields, "ec_connector_extra_config")
    transport = _transport("--ec-transfer-config", fields.get("ec_connector"), _EC_NAMES)
    path = extra.get("shared_storage_path") or extra.get("path") or ""
    if transport == "shared_storage" and not path:
        raise ConfigError(
            "--ec-transfer-config: shared storage needs "
            "ec_connector_extra_config.shared_storage_path"
        )
    values = {
        "transport": transport,
        "role": fields.get("ec_role", "ec_both"),
        "ec_buffer_size": fields.get("ec_buffer_size", 1_000_000_000),
        "landing_size": extra.get("landing_size", 256 << 20),
        "host": fields.get("ec_ip", "127.0.0.1"),
        "port": fields.get("ec_port", 0),
        "lease_s": extra.get("ec_lease_duration", 30.0),
        "load_timeout_s": extra.get("load_timeout_s", 30.0),
        "timeout_s": extra.get("ec_timeout", 20.0),
        "path": path or str(namespace_dir()),
        "peers": extra.get("peers", []),
    }
    return _convert("--ec-transfer-config", values, ECConfig)


def parse_kv(text: str) -> KVConfig:
    """A transport's name or vLLM's JSON object. `ConfigError` names what is wrong."""
    fields = _object("--kv-transfer-config", text, "kv_connector")
    extra = _extra("--kv-transfer-config", fields, "kv_connector_extra_config")
    transport = _transport("--kv-transfer-config", fields.get("kv_connector"), _KV_NAMES)
    path = extra.get("shared_storage_path") or extra.get("path") or ""
    if transport == "shared_storage" and not path:
        raise ConfigError(
            "--kv-transfer-config: shared storage needs "
            "kv_connector_extra_config.shared_storage_path"
        )
    values = {
        "transport": transport,
        "role": fields.get("kv_role", "kv_both"),
        "host": fields.get("kv_ip", "127.0.0.1"),
        "port": fields.get("kv_port", 0),
        "lease_s": extra.get("kv_lease_duration", 30.0),
        "timeout_s": extra.get("kv_timeout", 20.0),
        "buffer_device": fields.get("kv_buffer_device", ""),
        "staged": extra.get("staged", False),
        "load_failure_policy": fields.get("kv_load_failure_policy", "recompute"),
        "path": path or str(namespace_dir()),
    }
    return _convert("--kv-transfer-config", values, KVConfig)


def _object(flag: str, text: str, name: str) -> dict[str, Any]:
    if not text.lstrip().startswith("{"):
        return {name: text}
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ConfigError(f"{flag}: {error}") from None


def _extra(flag: str, fields: dict[str, Any], name: str) -> dict[str, Any]:
    extra = fields.get(name)
    if extra is not None and not isinstance(extra, dict):
        raise ConfigError(f"{flag}: {name} must be an object, not {extra!r}")
    return extra or {}


def _transport(flag: str, name: object, names: dict[str, Transport]) -> Transport:
    if not isinstance(name, str) or name not in names:
        raise ConfigError(f"{flag}: connector {name!r} is not one of {', '.join(names)}")
    return names[name]


_T = TypeVar("_T")


def _convert(flag: str, values: dict[str, Any], kind: type[_T]) -> _T:
    whole = {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in values.items()
    }
    try:
        return msgspec.convert(whole, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{flag}: {error}") from None
