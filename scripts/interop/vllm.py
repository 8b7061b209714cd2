"""vLLM workers as processes on loopback, ended by their own ids."""

import contextlib
import json
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.common.processes import free_port
from scripts.interop.model import NAME

START_S = 900.0
STOP_S = 40.0
QUIET: Mapping[str, str] = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
ENVIRONMENT: Mapping[str, str] = {
    **QUIET,
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_WORKER_MULTIPROC_METHOD": "fork",  # imports take most of the time of a start
    "VLLM_SERVER_DEV_MODE": "1",  # routes that empty caches
    "VLLM_LOGGING_LEVEL": "DEBUG",  # the EC connector speaks of what it saves and loads here only
    "UCX_NET_DEVICES": "lo",
}
_FLAGS = (
    "--host", "127.0.0.1", "--served-model-name", "tiny", "--enforce-eager", "--dtype", "float32",
    "--max-model-len", "2048", "--max-num-seqs", "8",
)  # fmt: skip


@dataclass(frozen=True)
class Transfers:
    """Which connectors a worker has: its part in EC over `folder` ("" for none), and KV or not."""

    folder: Path
    ec: str = ""
    kv: bool = False

    def flags(self) -> list[str]:
        flags = []
        if self.ec:
            extra = {"shared_storage_path": str(self.folder)}
            config = {
                "ec_connector": "ECExampleConnector",
                "ec_role": self.ec,
                "ec_connector_extra_config": extra,
            }
            flags += ["--ec-transfer-config", json.dumps(config)]
        if self.kv:
            config = {
                "kv_connector": "NixlConnector",
                "kv_role": "kv_both",
                "kv_buffer_device": "cpu",
            }
            flags += ["--kv-transfer-config", json.dumps(config)]
        return flags


class Worker:
    """`vllm serve` in the folder that holds the model. Has a session of its own, so that what it
    started can be ended with it."""

    def __init__(
        self,
        name: str,
        venv: Path,
        root: Path,
        folder: str,
        flags: Sequence[str],
        env: Mapping[str, str],
    ) -> None:
        self.name = name
        port = free_port(2)
        side = port + 1
        self.url = f"http://127.0.0.1:{port}"
        self.log_path = root / f"vllm-{name}.log"
        environment = {**os.environ, **ENVIRONMENT, "VLLM_NIXL_SIDE_CHANNEL_PORT": str(side), **env}
        command = [str(venv / "bin" / "vllm"), "serve", NAME, "--port", str(port), *_FLAGS]
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, *flags],
                cwd=root / folder,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_ready(self) -> None:
        deadline = time.monotonic() + START_S
        while not _answers(f"{self.url}/health"):
            if self.process.poll() is not None or time.monotonic() > deadline:
                end = self.log_path.read_text(errors="replace")[-3000:]
                raise RuntimeError(f"vLLM worker {self.name} did not start:\n{end}")
            time.sleep(0.5)

    def logged(self, pattern: str) -> list[str]:
        """What the pattern's group was in each line of the log that has it, in order."""
        return re.findall(pattern, self.log_path.read_text(errors="replace"))

    def forget(self) -> None:
        forget(self.url)

    def stop(self) -> None:
        """TERM, then after a while KILL for the whole session."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def forget(url: str) -> None:
    """Empty a worker's caches: prefixes, embeddings, processed media."""
    for cache in ("prefix", "encoder", "mm"):
        post(f"{url}/reset_{cache}_cache", {}, 10.0)


def metric(url: str, name: str, *, prefix: bool = False) -> float:
    """The sum over its labels of a metric that a server shows; 0 if it is not there. `prefix`:
    further labels may follow those in `name`."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as response:
        text = response.read().decode()
    labels = r".*\}" if prefix else r"(?:\{.*\})?"
    found = re.findall(rf"^{re.escape(name)}{labels} (\S+)$", text, re.MULTILINE)
    return sum(map(float, found))


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def post(
    url: str, body: Any, timeout_s: float, headers: Mapping[str, str] = MappingProxyType({})
) -> bytes:
    """The answer's body; an HTTP error carries the worker's words."""
    headers = {"content-type": "application/json", **headers}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            return bytes(response.read())
    except urllib.error.HTTPError as error:
        text = error.read().decode(errors="replace")
        raise RuntimeError(f"HTTP {error.code}: {text[:300]}") from None
