"""The engine's process as its worker sees it."""

import subprocess
import sys
from pathlib import Path

import msgspec

from services.engine.config import EngineConfig
from services.engine.messages import Start
from tests.conftest import ModelDir


def test_an_engine_ends_with_its_worker_even_while_it_starts(
    model_dir: ModelDir, tmp_path: Path
) -> None:
    """The worker's end of the pipe is closed before the engine has looked for it."""
    model = str(model_dir("qwen3"))
    config = EngineConfig(
        model_dir=model, model="m", revision="r", parts=("language",), num_blocks=8
    )
    start = Start(f"ipc://{tmp_path}/commands", f"ipc://{tmp_path}/events", config)
    engine = subprocess.Popen(
        [sys.executable, "-m", "services.engine.process"], stdin=subprocess.PIPE
    )
    try:
        engine.communicate(msgspec.json.encode(start) + b"\n", timeout=120)
    finally:
        engine.kill()
    assert engine.returncode == 0
