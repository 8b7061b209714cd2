"""How a worker is told to use a transport, for tests that try all of them."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

TRANSPORTS = {"shm": "", "shared_storage": "", "nixl": "nixl", "ucx": "ucxx"}
"""With the package that each needs."""


def need(transport: str) -> None:
    package = TRANSPORTS[transport]
    if package and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")


def flags_of(transport: str, root: Path, *, staged: bool = False, **ec: Any) -> tuple[str, ...]:
    """The flags of a worker; shared storage has its files in `root`. `staged`: KV goes the way it
    does from and to GPUs."""
    extra = {"shared_storage_path": str(root)} if transport == "shared_storage" else {}
    ec = {"ec_connector": transport, "ec_connector_extra_config": extra, **ec}
    more = {**extra, "staged": staged}
    kv = {"kv_connector": transport, "kv_connector_extra_config": more}
    return "--ec-transfer-config", json.dumps(ec), "--kv-transfer-config", json.dumps(kv)
