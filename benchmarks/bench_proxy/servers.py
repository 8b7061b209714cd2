"""Processes that `bench_proxy` measures: fake workers, our proxy, the peer; each on its core."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.processes import add_to_master, call, ending, free_port, wait_ready

PEER = "vllm-router==0.1.17"
_ADMIN_KEY = "bench"


@dataclass(frozen=True)
class Server:
    """A process with a port. Times are CPU seconds over all its threads."""

    name: str
    process: subprocess.Popen[bytes]
    port: int

    @property
    def url(self) -> str:
        return _url(self.port)

    def cpu_s(self) -> float:
        tasks = Path(f"/proc/{self.process.pid}/task")
        total = 0
        for task in tasks.iterdir():
            with contextlib.suppress(OSError):  # a thread that has ended
                total += int((task / "schedstat").read_text().split()[0])
        return total / 1e9

    def placed(self) -> int:
        """Requests of our proxy that its master has placed."""
        text = call("GET", self.url, "/metrics").decode()
        name = 'triptych_proxy:placements_total{by="master"} '
        found = [line for line in text.splitlines() if line.startswith(name)]
        return int(float(found[0].removeprefix(name))) if found else 0

    def peak_bytes(self) -> int:
        """The largest resident memory so far."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError("/proc does not show VmHWM")


@dataclass(frozen=True)
class Workers:
    process: subprocess.Popen[bytes]
    encode: int
    prefill: int
    decode: int

    def received_bytes(self) -> int:
        """Bodies of all requests to all of them."""
        return int(json.loads(call("GET", _url(self.decode), "/stats"))["bytes"])


@contextlib.contextmanager
def workers(core: int) -> Iterator[Workers]:
    process = _start([sys.executable, "-m", "benchmarks.bench_proxy.upstream"], core, pipe=True)
    with ending(process):
        assert process.stdout is not None
        _, *ports = process.stdout.readline().split()
        yield Workers(process, *map(int, ports))


@contextlib.contextmanager
def ours(fleet: Workers, core: int, *flags: str) -> Iterator[Server]:
    """Our proxy with everything on, E+P+D."""
    port = free_port()
    command = [
        sys.executable, "-m", "proxy", "--dialect", "openai", "--port", str(port),
        "--encode-servers-urls", _url(fleet.encode),
        "--prefill-servers-urls", _url(fleet.prefill),
        "--decode-servers-urls", _url(fleet.decode),
        *flags,
    ]  # fmt: skip
    with _serving("triptych", command, port, core) as server:
        yield server


@contextlib.contextmanager
def master(fleet: Workers, core: int) -> Iterator[Server]:
    """Our master, which knows the workers."""
    port = free_port()
    command = [
        sys.executable, "-m", "services.master", "--port", str(port),
        "--admin-api-key", _ADMIN_KEY, "--log-level", "error",
    ]  # fmt: skip
    with _serving("master", command, port, core) as server:
        roles = {
            "encode": [_url(fleet.encode)],
            "prefill": [_url(fleet.prefill)],
            "decode": [_url(fleet.decode)],
        }
        add_to_master(_url(port), _ADMIN_KEY, roles)
        yield server


@contextlib.contextmanager
def peer(binary: Path, fleet: Workers, core: int) -> Iterator[Server]:
    """vllm-router with its defaults, P+D."""
    port = free_port()
    command = [
        str(binary), "--vllm-pd-disaggregation", "--kv-connector", "nixl",
        "--prefill", _url(fleet.prefill), "--decode", _url(fleet.decode),
        "--port", str(port), "--prometheus-port", str(free_port()),
        "--policy", "round_robin", "--log-level", "error",
    ]  # fmt: skip
    with _serving("vllm-router", command, port, core) as server:
        yield server


def peer_binary(given: str, folder: Path) -> Path | None:
    """The peer's program: as given ("none" for no peer), or in a venv made in `folder`."""
    if given:
        return None if given == "none" else Path(given)
    binary = folder / "bin" / "vllm-router"
    if not binary.exists():
        print(f"installing {PEER} into {folder}", file=sys.stderr)
        venv.create(folder, with_pip=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", PEER]
        subprocess.run(pip, check=True)
    return binary


@contextlib.contextmanager
def _serving(name: str, command: Sequence[str], port: int, core: int) -> Iterator[Server]:
    process = _start(command, core)
    with ending(process):
        wait_ready(process, _url(port))
        yield Server(name, process, port)


def _start(command: Sequence[str], core: int, pipe: bool = False) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE if pipe else subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )


def _url(port: int) -> str:
    return f"http://127.0.0.1:{port}"
