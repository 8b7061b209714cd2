"""An engine that refuses its configuration lets go of all that it has opened."""

import threading
from pathlib import Path

import pytest

from connectors.config import KVConfig
from protocol.errors import ConfigError
from tests.conftest import ModelDir
from tests.support.engines import engine


def test_a_bad_adapter_leaves_nothing_open(model_dir: ModelDir, tmp_path: Path) -> None:
    shared, disk, threads = tmp_path / "shm", tmp_path / "disk", set(threading.enumerate())
    with pytest.raises(ConfigError, match="--lora-modules: LoRA adapter 'a'"):
        engine(
            model_dir("qwen3"), kv=KVConfig("shm", path=str(shared)), kv_host_bytes=1 << 20,
            kv_disk_bytes=1 << 20, kv_disk_path=str(disk), max_loras=1,
            lora_modules={"a": str(tmp_path)},
        )  # fmt: skip
    assert [path for path in shared.rglob("*") if path.is_file()] == []
    assert set(threading.enumerate()) <= threads
