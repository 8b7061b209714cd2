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
from protocol.plugins import Group, plugin_names

TRANSPORTS: Group = "transports"
# Names of our own and of vLLM, whose ECCPUConnector moves embeddings over NIXL.
_EC_NAMES: dict[str, str] = {
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
_KV_NAMES: dict[str, str] = {
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
_MAX_PORT = (1 << 16) - 1


_Bytes = Annotated[int, Meta(gt=0, lt=1 << 60)]
_Seconds = Annotated[float, Meta(gt=0, le=1e6)]
_Port = Annotated[int, Meta(ge=0, lt=1 << 16)]


class ECConfig(msgspec.Struct, frozen=True):
    """`--ec-transfer-config`.

    A consumer's region has twice `landing_size`: once for what is on its way, and once for what
    stays where it landed while it is in use.
    """

    transport: str = "local"  # how embeddings move
    # ec_producer, ec_consumer or ec_both, as vLLM names them
    role: Literal["ec_producer", "ec_consumer", "ec_both"] = "ec_both"
    ec_buffer_size: _Bytes = 1_000_000_000  # bytes of a producer's store
    landing_size: _Bytes = 256 << 20  # bytes that may be on their way into a consumer
    host: str = "127.0.0.1"  # address that the side channel listens on
    port: _Port = 0  # TCP port of the side channel, 0 for any free one
    lease_s: _Seconds = 30.0  # seconds that an entry is kept which a consumer was told of or reads
    load_timeout_s: _Seconds = 30.0  # seconds that a consumer waits for an entry
    timeout_s: _Seconds = 20.0  # seconds without an answer after which a peer counts as gone
    # whether files of shared storage without a checksum are loaded, which other engines write
    load_unchecked: bool = False
    # root of shared storage, else the folder in which producers of this host are found
    path: str = ""
    peers: tuple[tuple[str, _Port], ...] = ()  # side channels of producers on other hosts


class KVConfig(msgspec.Struct, frozen=True):
    """`--kv-transfer-config`."""

    transport: str = "local"  # how KV blocks move
    role: str = "kv_both"  # kv_producer, kv_consumer or kv_both, as vLLM names them
    host: str = "127.0.0.1"  # address that the side channel listens on
    port: _Port = 0  # TCP port of the side channel, 0 for any free one
    lease_s: _Seconds = 30.0  # seconds without a heartbeat after which an offer ends
    timeout_s: _Seconds = 20.0  # seconds that a handshake may take, and a peer may be silent
    # what follows a failed fetch: compute the prompt here, or fail the request
    load_failure_policy: Literal["recompute", "fail"] = "recompute"
    # of a pool on a GPU: cuda hands over its memory, cpu a copy in host memory, "" what works
    buffer_device: Literal["", "cpu", "cuda"] = ""
    staged: bool = False  # copy through host memory in any case, also on a CPU
    path: str = ""  # root of shared storage, else the folder in which engines of this host meet


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
    host, port = _side_channel("VLLM_EC_SIDE_CHANNEL", transport)
    values = {
        "transport": transport,
        "role": fields.get("ec_role", "ec_both"),
        "ec_buffer_size": fields.get("ec_buffer_size", 1_000_000_000),
        "landing_size": extra.get("landing_size", 256 << 20),
        "host": fields.get("ec_ip", host),
        "port": fields.get("ec_port", port),
        "lease_s": extra.get("ec_lease_duration", 30.0),
        "load_timeout_s": extra.get("load_timeout_s", 30.0),
        "timeout_s": extra.get("ec_timeout", 20.0),
        "load_unchecked": extra.get("load_unchecked", False),
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
    host, port = _side_channel("VLLM_NIXL_SIDE_CHANNEL", transport)
    values = {
        "transport": transport,
        "role": fields.get("kv_role", "kv_both"),
        "host": fields.get("kv_ip", host),
        "port": fields.get("kv_port", port),
        "lease_s": extra.get("kv_lease_duration", 30.0),
        "timeout_s": extra.get("kv_timeout", 20.0),
        "buffer_device": fields.get("kv_buffer_device", ""),
        "staged": extra.get("staged", False),
        "load_failure_policy": fields.get("kv_load_failure_policy", "recompute"),
        "path": path or str(namespace_dir()),
    }
    return _convert("--kv-transfer-config", values, KVConfig)


def _side_channel(variable: str, transport: str) -> tuple[str, int]:
    """(address, port) of a NIXL side channel, as vLLM's variables say where the flag does not."""
    if transport != "nixl":
        return "127.0.0.1", 0
    port = os.environ.get(f"{variable}_PORT", "0")
    if not (port.isdecimal() and int(port) <= _MAX_PORT):
        raise ConfigError(f"{variable}_PORT: '{port[:32]}' is no port, 0 to {_MAX_PORT}")
    return os.environ.get(f"{variable}_HOST", "127.0.0.1"), int(port)


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


def _transport(flag: str, name: object, names: dict[str, str]) -> str:
    """What a connector's name means; the transport of a package has one name for both."""
    if isinstance(name, str) and name in names:
        return names[name]
    known = [*names, *plugin_names(TRANSPORTS)]
    if not isinstance(name, str) or name not in known:
        raise ConfigError(f"{flag}: connector {name!r} is not one of {', '.join(known)}")
    return name


_T = TypeVar("_T")


def _convert(flag: str, values: dict[str, Any], kind: type[_T]) -> _T:
    # vLLM's JSON has whole numbers such as 1e9, which JSON makes floats.
    whole = {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in values.items()
    }
    try:
        return msgspec.convert(whole, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{flag}: {error}") from None
