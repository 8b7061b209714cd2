"""Processes on fixed ports, killed, stopped and started again at will: workers, master, proxies."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.common.processes import free_port
from benchmarks.soak.interposer import Interposer
from connectors.config import namespace_dir

TRANSPORTS = ("shm", "nixl", "ucx", "shared_storage")
MODEL = "models/demo"
LEASE_S = 10.0
_START_S = 300.0
_STOP_S = 90.0


@dataclass
class Service:
    """One process on a port of its own."""

    name: str  # by which logs and reports call it
    module: str  # what is started
    flags: Sequence[str]  # its command line
    log: Path  # gathers what it prints over all restarts
    port: int  # and on which port
    lives: int = 0  # how often it has been started
    host: str = "127.0.0.1"  # where it listens
    inside: str = ""  # the network namespace that it runs in, "" for this process's own
    process: subprocess.Popen[bytes] = field(init=False)  # the latest

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def start(self) -> None:
        command = ["ip", "netns", "exec", self.inside] if self.inside else []
        command += [sys.executable, "-m", self.module, "--host", self.host]
        command += ["--port", str(self.port), *self.flags]
        if self.host != "127.0.0.1":
            command.append("--allow-unprotected")
        self.lives += 1
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def wait_ready(self) -> None:
        """`RuntimeError` if it ends instead, or takes too long."""
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.call("GET", "/health")[0] == 200:
                    return
            time.sleep(0.1)
        raise RuntimeError(f"{self.name} did not start:\n{self.log.read_text()[-2000:]}")

    def call(self, method: str, path: str, timeout_s: float = 10.0) -> tuple[int, Any]:
        """(status, decoded answer)."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
        with contextlib.closing(connection):
            connection.request(method, path)
            response = connection.getresponse()
            body = response.read()
        return response.status, json.loads(body) if body.startswith((b"{", b"[")) else None

    def pids(self) -> list[int]:
        """Its own, and that of its engine if it has one."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [pid, *map(int, children)]

    def kill(self, victim: int = 0) -> str:
        """kill −9 of the service (0) or of its engine (1), which must end the other one; what was
        done."""
        pids = self.pids()
        os.kill(pids[victim], signal.SIGKILL)
        self.process.wait(_STOP_S)
        deadline = time.monotonic() + _STOP_S
        while any(map(_alive, pids)):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name}: its engine outlives it")
            time.sleep(0.02)
        return f"{self.name}'s {('worker', 'engine')[victim]}"

    def stall(self, seconds: float, victims: slice = slice(None)) -> None:
        """Stopped by signal meanwhile: `victims` of its own process and its engine's."""
        pids = self.pids()[victims]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def stop(self) -> int:
        """Its exit status; −9 if it does not end by itself."""
        self.process.terminate()
        try:
            return self.process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@dataclass
class Stack:
    """`root` is what shared storage uses, `segments` where shared memory lies. `interposers`: what
    stands before workers, by their names."""

    workers: list[Service]  # encode, prefill and decode workers
    proxies: list[Service]  # proxies before them
    masters: list[Service]  # masters, [] for none
    root: Path
    segments: Path
    interposers: dict[str, Interposer] = field(default_factory=dict)

    @property
    def services(self) -> list[Service]:
        return [*self.workers, *self.proxies, *self.masters]


def connector_flags(transport: str, root: Path) -> list[str]:
    """Small stores and short leases, so that every bound is reached and every lease seen to end."""
    extra: dict[str, Any] = {"shared_storage_path": str(root)} if "storage" in transport else {}
    ec = {
        "ec_connector": transport,
        "ec_buffer_size": 4 << 20,
        "ec_connector_extra_config": {
            **extra, "landing_size": 8 << 20, "ec_lease_duration": LEASE_S,
            "load_timeout_s": LEASE_S, "ec_timeout": LEASE_S,
        },
    }  # fmt: skip
    kv = {
        "kv_connector": transport,
        "kv_connector_extra_config": {
            **extra, "kv_lease_duration": LEASE_S, "kv_timeout": LEASE_S,
        },
    }  # fmt: skip
    return ["--ec-transfer-config", json.dumps(ec), "--kv-transfer-config", json.dumps(kv)]


@contextlib.contextmanager
def running(
    transport: str,
    counts: Mapping[str, int],
    folder: Path,
    *,
    master: bool = False,
    proxies: int = 1,
    dtype: str = "float32",
    interposed: bool = False,
    proxy_flags: Sequence[str] = (),
    model: str = MODEL,
    flags_of: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> Iterator[Stack]:
    """A stack that is ready; its processes are ended on leaving. Its proxies ask a `master`
    or have lists. In float32 an answer does not depend on what is computed beside it. `interposed`:
    every second worker is behind an `Interposer`, whose address masters are told. `flags_of`: more
    of them for workers, by role."""
    namespace = f"soak-{uuid.uuid4().hex[:8]}"
    os.environ["TRIPTYCH_NAMESPACE"] = namespace
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    root = folder / "shared"
    root.mkdir()
    masters = [service("master", "services.master", [], folder)] if master else []
    joined = ["--master-url", masters[0].url] if masters else []
    common = ["--model", model, *connector_flags(transport, root), *joined]
    common += ["--kv-cache-memory-bytes", str(24 << 20), "--embedding-cache-bytes", str(4 << 20)]
    common += ["--dtype", dtype]
    workers = [
        service(f"{role}-{i}", f"services.{role}", [*common, *flags_of.get(role, ())], folder)
        for role, count in counts.items()
        for i in range(count)
    ]
    before = {one.name: Interposer(one.port) for one in (workers[1::2] if interposed else ())}
    for one in workers[1::2] if interposed else ():
        one.flags = [*one.flags, "--advertise-url", before[one.name].url]
    flags = ["--model", model, "--probe-interval", "0.2", *(joined or _lists(workers))]
    flags += proxy_flags
    doors = [service(f"proxy-{i}", "proxy", flags, folder) for i in range(proxies)]
    made = Stack(workers, doors, masters, root, namespace_dir(namespace), before)
    try:
        with started(made) as stack:
            yield stack
    finally:
        for interposer in before.values():
            interposer.close()


@contextlib.contextmanager
def started(stack: Stack) -> Iterator[Stack]:
    """Masters, then workers, then proxies, each group ready before the next; those that run on
    leaving are ended."""
    try:
        for group in (stack.masters, stack.workers, stack.proxies):
            for one in group:
                one.start()
            for one in group:
                one.wait_ready()
        yield stack
    finally:
        for one in (*stack.proxies, *stack.workers, *stack.masters):
            if hasattr(one, "process") and one.process.poll() is None:
                one.stop()


def _lists(workers: Sequence[Service]) -> list[str]:
    """The flags that name workers to a proxy."""
    flags: list[str] = []
    for role, option in (("encoder", "encode"), ("prefill", "prefill"), ("decode", "decode")):
        urls = ",".join(w.url for w in workers if w.name.startswith(role))
        flags += [f"--{option}-servers-urls", urls]
    return flags


def service(name: str, module: str, flags: Sequence[str], folder: Path) -> Service:
    """Not started; on a port that is free at this moment."""
    return Service(name, module, flags, folder / f"{name}.log", free_port())
