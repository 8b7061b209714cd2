"""Real workers and proxies as processes on ephemeral loopback ports, ended by their own ids."""

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from connectors.config import namespace_dir
from tests.support.forked import Service

START_S = 120.0
STOP_S = 60.0
SHUTDOWN_S = "5"  # what a test leaves under way need not end


class Process:
    """One service. `url` is known once it is ready; `stop` ends it and returns its exit status."""

    def __init__(
        self, module: str, *flags: str, env: Mapping[str, str], forked: bool = True
    ) -> None:
        """`forked`: from a process that has imported everything, instead of by its command."""
        self._forked = forked
        self.module = module
        self.flags = flags
        self._env = {**os.environ, "TRIPTYCH_SHUTDOWN_TIMEOUT": SHUTDOWN_S, **env}
        self.log: list[str] = []
        self.url = ""
        self.launch()

    def launch(self, port: int = 0) -> None:
        arguments = [*self.flags, "--port", str(port)]
        if self._forked:
            self.process: Service | subprocess.Popen[str] = Service(
                self.module, arguments, self._env
            )
        else:
            self.process = subprocess.Popen(
                [sys.executable, "-m", self.module, *arguments],
                env=self._env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )  # fmt: skip
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(
            target=self._read, args=(self.process, self._lines), daemon=True
        )
        self._reader.start()

    def _read(self, process: Service | subprocess.Popen[str], lines: queue.Queue[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self.log.append(line)
                if " ready on http" in line:
                    lines.put(line)
        lines.put("")

    def wait_ready(self) -> str:
        """The service's URL."""
        try:
            line = self._lines.get(timeout=START_S)
        except queue.Empty:
            line = ""
        assert line, f"{self.module} did not start:\n{''.join(self.log)}"
        self.url = line.split(" ready on ")[1].strip()
        return self.url

    def refusal(self) -> tuple[int, list[str]]:
        """(exit status, lines written) of a process that is expected to end by itself."""
        status = self.process.wait(START_S)
        self._reader.join(STOP_S)
        return status, "".join(self.log).splitlines()

    @property
    def engine_pid(self) -> int:
        """Of a worker's engine, which is its first child (Linux)."""
        pid = self.process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(STOP_S)

    def restart(self) -> None:
        """Start again on the same port."""
        self.launch(int(self.url.rpartition(":")[2]))
        self.wait_ready()

    def terminate(self) -> None:
        """As an operator does, who does not wait."""
        self.process.send_signal(signal.SIGTERM)

    def stop(self) -> int:
        self.terminate()
        return self.status()

    def status(self) -> int:
        """Its exit status, once it has been told to stop."""
        try:
            return self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.module} did not stop:\n{''.join(self.log)}") from None


@dataclass
class Stack:
    """Services that belong together: one shared-memory namespace, one model."""

    model: Path
    forked: bool = True
    processes: list[Process] = field(default_factory=list)
    namespace: str = field(default_factory=lambda: f"test-{uuid.uuid4().hex[:12]}")

    def start(self, module: str, *flags: str, models: Mapping[str, Path] | None = None) -> Process:
        """`models`: by name, if not the stack's own."""
        env = {
            "TRIPTYCH_NAMESPACE": self.namespace,
            # Flags of a test win: the type of the reference, and a pool that is soon zeroed.
            "TRIPTYCH_DTYPE": "float32",
            "TRIPTYCH_KV_CACHE_MEMORY_BYTES": str(32 << 20),
            "OMP_NUM_THREADS": "1",
        }
        named = [
            flag
            for name, model in (models or {"tiny": self.model}).items()
            for flag in ("--model", str(model), "--served-model-name", name)
        ]
        process = Process(module, *named, *flags, env=env, forked=self.forked)
        self.processes.append(process)
        return process

    def started(self, *roles: str) -> list[Process]:
        """Workers of these roles, started at the same time and ready."""
        workers = [self.start(f"services.{role}") for role in roles]
        for worker in workers:
            worker.wait_ready()
        return workers

    def start_plain(self, module: str, *flags: str) -> Process:
        """A service that has no model."""
        process = Process(module, *flags, env={}, forked=self.forked)
        self.processes.append(process)
        return process

    @property
    def segments(self) -> Path:
        """The folder in which its workers meet."""
        return namespace_dir(self.namespace)

    def stop(self) -> list[int]:
        """Exit statuses, in the order of starting; all stop at the same time."""
        for process in self.processes:
            process.terminate()
        return [process.status() for process in self.processes]


@contextlib.contextmanager
def running(model: Path, *, forked: bool = True) -> Iterator[Stack]:
    """A stack to add services to; all are ended on leaving. What those that were killed have left
    is swept by the next process that starts in their namespace, and here none does."""
    stack = Stack(model, forked)
    try:
        yield stack
    finally:
        for process in stack.processes:
            process.terminate()
        for process in stack.processes:
            with contextlib.suppress(AssertionError):
                process.status()
        shutil.rmtree(stack.segments, ignore_errors=True)


def engine_of(worker: Process) -> int:
    """The process id of its engine."""
    pid = worker.process.pid
    (engine,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(engine)


def proxy(
    stack: Stack, encode: list[Process], prefill: list[Process], decode: list[Process],
    *flags: str,
) -> Process:  # fmt: skip
    """A proxy before ready workers."""
    process = stack.start(
        "proxy",
        "--encode-servers-urls", ",".join(p.url for p in encode) or "none",
        "--prefill-servers-urls", ",".join(p.url for p in prefill) or "none",
        "--decode-servers-urls", ",".join(p.url for p in decode),
        "--probe-interval", "1",
        *flags,
    )  # fmt: skip
    process.wait_ready()
    return process


def call(
    url: str,
    body: Any = None,
    timeout_s: float = 120.0,
    headers: Mapping[str, str] = MappingProxyType({}),
    method: str | None = None,
) -> tuple[int, Any]:
    """(status, decoded JSON answer); `body` None is a GET, bytes are sent as they are."""
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    given = {"content-type": "application/json", **headers}
    request = urllib.request.Request(url, data, given, method=method)
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            status, answer = response.status, response.read()
    except urllib.error.HTTPError as error:
        status, answer = error.code, error.read()
    return status, json.loads(answer) if answer else None


def idle(process: Process, timeout_s: float = 30.0) -> Any:
    """Wait until a worker holds no request and no owned block, then its integrity report."""
    deadline = time.monotonic() + timeout_s
    while True:
        _, report = call(f"{process.url}/integrity")
        assert "gauges" in report, "\n".join((str(report), *process.log))
        gauges = report["gauges"]
        busy = sum(
            gauges.get(name, 0.0)
            for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc",
                         "num_items_encoding")
        )  # fmt: skip
        if not busy:
            assert report["problems"] == [], report["problems"]
            return report
        assert time.monotonic() < deadline, report
        time.sleep(0.02)


def generated(worker: Process) -> float:
    """Tokens that it has put out so far."""
    tokens: float = call(f"{worker.url}/integrity")[1]["counters"]["generation_tokens"]
    return tokens


def metric(process: Process, name: str) -> float:
    """The sum over all labels of a server's metrics whose name begins so."""
    with urllib.request.urlopen(f"{process.url}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"triptych_{name}"))
