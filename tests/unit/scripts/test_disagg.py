"""What the launch script says before it starts anything."""

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from protocol.settings import resolve
from triptych.launch.options import ServeConfig

SCRIPT = Path(__file__).parents[3] / "scripts" / "disagg.sh"


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("MODEL", "/nowhere", "error: MODEL=/nowhere is not a directory"),
        ("NUM_D", "0", "error: NUM_D=0 must be at least 1"),
        ("NUM_P", "two", "error: NUM_P=two must be a whole number"),
    ],
)
def test_a_setting_that_cannot_be_is_told_in_one_line(name: str, value: str, reason: str) -> None:
    done = subprocess.run(
        ["bash", str(SCRIPT)],
        env={**os.environ, name: value},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(reason)


def launched(tmp_path: Path, **variables: str) -> dict[str, str]:
    """What the launcher finds in its environment; it is a stand-in that prints that."""
    files = [SCRIPT.parents[1] / "pyproject.toml", SCRIPT.parent / "setup.sh"]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
    (tmp_path / "bin").mkdir(exist_ok=True)
    (tmp_path / f".installed-{digest}-").touch()
    program = tmp_path / "bin" / "python"
    program.write_text("#!/bin/sh\nenv\n")
    program.chmod(0o755)
    kept = {"PATH": os.environ["PATH"], "VENV": str(tmp_path), **variables}
    done = subprocess.run(
        ["bash", str(SCRIPT)], env=kept, capture_output=True, text=True, timeout=30, check=True
    )
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)


def test_the_variables_of_vllms_scripts_are_taken(tmp_path: Path) -> None:
    given = {"ENDPOINT_PORT": "10009", "PREFILL_DECODE_PORT": "19999", "GPU_PD": "3"}
    memory = {"GPU_MEMORY_UTILIZATION_PD": "0.5"}
    found = launched(tmp_path, NUM_P="0", **given, **memory)
    assert (found["PROXY_PORT"], found["DECODE_PORT"], found["GPU_D"]) == ("10009", "19999", "3")
    assert (found["GPU_MEMORY_UTILIZATION_D"], found["MAX_NUM_SEQS"]) == ("0.5", "128")
    found = launched(tmp_path, NUM_P="1", PROXY_PORT="5", MAX_NUM_SEQS="7", **given)
    assert (found["PROXY_PORT"], found["MAX_NUM_SEQS"]) == ("5", "7")
    assert "DECODE_PORT" not in found and "GPU_D" not in found


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("MODEL", "org/name", "model"),
        ("LOG_PATH", "elsewhere", "log_path"),
        ("ENCODE_PORT", "19001", "encode_port"),
        ("PREFILL_PORT", "19002", "prefill_port"),
        ("DECODE_PORT", "19003", "decode_port"),
        ("PROXY_PORT", "19004", "port"),
        ("GPU_E", "1", "gpu_e"),
        ("GPU_P", "2", "gpu_p"),
        ("GPU_D", "3", "gpu_d"),
        ("DEVICE_PLATFORM", "xpu", "device_platform"),
        ("DEVICE_AFFINITY_ENV", "MY_DEVICES", "device_affinity_env"),
        ("EC_SHARED_STORAGE_PATH", "/tmp/mine", "ec_shared_storage_path"),
        ("TIMEOUT_SECONDS", "12000", "timeout_seconds"),
        ("NUM_PROMPTS", "7", "num_prompts"),
        ("GPU_MEMORY_UTILIZATION_E", "0.01", "gpu_memory_e"),
        ("GPU_MEMORY_UTILIZATION_P", "0.6", "gpu_memory_p"),
        ("GPU_MEMORY_UTILIZATION_D", "0.5", "gpu_memory_d"),
        ("MAX_NUM_SEQS", "32", "max_num_seqs"),
        ("MAX_MODEL_LEN", "32768", "max_model_len"),
    ],
)
def test_a_variable_of_vllms_scripts_is_a_setting(name: str, value: str, field: str) -> None:
    """Those that another takes the value of are above."""
    found, default = getattr(resolve(ServeConfig, (), {name: value}), field), ServeConfig()
    assert found == type(getattr(default, field))(value) != getattr(default, field)


def test_embeddings_of_earlier_runs_are_removed_and_nothing_else(tmp_path: Path) -> None:
    storage = tmp_path / "storage"
    (storage / "hash").mkdir(parents=True)
    old, other = storage / "hash" / "encoder_cache.safetensors", storage / "hash" / "notes.txt"
    old.touch()
    other.touch()
    variables = {"EC_SHARED_STORAGE_PATH": str(storage)}
    launched(tmp_path, EC_TRANSPORT="shm", **variables)
    assert old.exists()
    launched(tmp_path, EC_TRANSPORT="shared_storage", **variables)
    assert other.exists() and not old.exists()
