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


def flags_of(transport: str, root: Path, **ec: Any) -> tuple[str, ...]:
    """The flags of a worker; shared storage has its files in `root`."""
    config = {
        "ec_connector": transport,
        "ec_connector_extra_config": {"shared_storage_path": str(root)},
        **ec,
    }
    if transport != "shared_storage":
        del config["ec_connector_extra_config"]
    kv = {"kv_connector": transport if transport != "shared_storage" else "shm"}
    return "--ec-transfer-config", json.dumps(config), "--kv-transfer-config", json.dumps(kv)
