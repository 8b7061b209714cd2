"""Servers that a benchmark starts: each on a free port, awaited, ended by its own process id."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

_START_S = 30.0
_STOP_S = 5.0
_CALL_S = 5.0
_LOAD_S = 600.0
_LAST_S = 60.0
_ENVIRONMENT: Mapping[str, str] = {
    "HF_HUB_OFFLINE": "1", "UCX_NET_DEVICES": "lo", "TRANSFORMERS_VERBOSITY": "error",
}  # fmt: skip
_PORTS = (12_000, 32_000)
_TRIES = 100
_SHOWN = 2000  # characters of the log of a server that does not start


def free_port(count: int = 1) -> int:
    """The first of `count` free ports in a row. They lie below the ports that Linux gives to
    outgoing connections (from 32768), so that no connection takes one before its server does."""
    for _ in range(_TRIES):
        first = random.randrange(*_PORTS)
        if all(_is_free(port) for port in range(first, first + count)):
            return first
    raise RuntimeError(f"no {count} free ports in a row were found")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


@contextlib.contextmanager
def ending(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Ends the process with the context: politely, and by force after a while."""
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_ready(
    process: subprocess.Popen[bytes],
    url: str,
    patience_s: float = _START_S,
    *,
    path: str = "/health",
    log: Path | None = None,
) -> None:
    """Until its `path` is good; `RuntimeError`, with the end of its `log`, if the process ends or
    takes too long."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            call("GET", url, path)
            return
        time.sleep(0.05)
    raise _not_started(process, log)


def _not_started(process: subprocess.Popen[bytes], log: Path | None) -> RuntimeError:
    said = f":\n{log.read_text(errors='replace')[-_SHOWN:]}" if log is not None else ""
    return RuntimeError(f"{process.args!r} did not start{said}")


@contextlib.contextmanager
def mock_workers(flags: Sequence[str], count: int, log: Path) -> Iterator[tuple[int, list[str]]]:
    """One process with so many mock workers on ports of their own: its id, and their URLs. `log`:
    file of what it prints. `RuntimeError` with the end of that if it does not start in time."""
    command = [sys.executable, "-m", "services.mock", "--count", str(count), "--port", "0", *flags]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    with ending(process):
        deadline = time.monotonic() + _START_S
        while len(urls := _ready_urls(log)) < count:
            if process.poll() is not None or time.monotonic() > deadline:
                raise _not_started(process, log)
            time.sleep(0.05)
        yield process.pid, urls


def _ready_urls(log: Path) -> list[str]:
    whole = log.read_text(errors="replace").rpartition("\n")[0]  # not of half a line
    return [line.split()[-1] for line in whole.splitlines() if " ready on " in line]


def processor_s(pid: int) -> float:
    """Seconds of processor time that a process has used (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def add_to_master(master: str, admin_key: str, workers: Mapping[str, Sequence[str]]) -> None:
    """Tell a master of workers (URLs by role) that cannot register, and wait until all are up.
    Prefill workers have the vision model too, as vLLM's have unless they are told otherwise."""
    headers = {"x-api-key": admin_key, "content-type": "application/json"}
    for role, urls in workers.items():
        for url in urls:
            body = json.dumps({"role": role, "url": url, "encodes": role == "prefill"})
            call("POST", master, "/instances", body, headers)
    count, deadline = sum(map(len, workers.values())), time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if len(json.loads(call("GET", master, "/workers")).get("workers", [])) >= count:
            return
        time.sleep(0.05)
    raise RuntimeError("the master does not know the workers")


def call(
    method: str,
    url: str,
    path: str,
    body: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """The answer's body; `ConnectionError` unless it is a 200."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=_CALL_S)
    with contextlib.closing(connection):
        connection.request(method, path, body, dict(headers or {}))
        response = connection.getresponse()
        answer = response.read()
    if response.status != 200:
        raise ConnectionError(f"HTTP {response.status} of {url}{path}: {answer[:200]!r}")
    return answer


@contextlib.contextmanager
def serving(
    command: Sequence[str], url: str, log: Path, more: Mapping[str, str] | None = None
) -> Iterator[str]:
    """A server that loads a model, with its output in `log`; gives its `url`. In a session of its
    own, so that what it started can be ended with it."""
    environment = {**os.environ, **_ENVIRONMENT, **(more or {})}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    try:
        wait_ready(process, url, _LOAD_S, log=log)
        yield url
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LAST_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
