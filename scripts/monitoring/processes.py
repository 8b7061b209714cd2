"""The stack, its load and Prometheus, as processes that are ended by their ids."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from benchmarks.common.processes import call, ending, free_port, serving, wait_ready
from triptych.launch.plan import python

_READY_S = 20.0


@dataclass(frozen=True)
class Ports:
    """One encode, one prefill and one decode worker, a master, Prometheus, the proxy that is asked
    and scraped, and another port."""

    proxy: int  # of the proxy that is asked and scraped
    master: int  # of the master
    encode: int  # of the encode worker
    prefill: int  # of the prefill worker
    decode: int  # of the decode worker
    prometheus: int  # of Prometheus
    other: int  # of a second proxy, where the first knows workers by the master alone

    @classmethod
    def free(cls) -> Ports:
        first = free_port(7)
        return cls(*range(first, first + 7))

    @property
    def targets(self) -> list[str]:
        """What is scraped."""
        ports = (self.proxy, self.master, self.encode, self.prefill, self.decode)
        return [f"127.0.0.1:{port}" for port in ports]


@contextlib.contextmanager
def stack(ports: Ports, folder: Path, *, registered: bool = False) -> Iterator[str]:
    """`triptych serve demo`; gives the proxy's URL. `registered`: of a proxy beside it, which knows
    workers by the master alone, as in fleets whose workers come and go."""
    flags = {
        "--port": ports.other if registered else ports.proxy, "--master-port": ports.master,
        "--encode-port": ports.encode, "--prefill-port": ports.prefill,
        "--decode-port": ports.decode,
    }  # fmt: skip
    words = [word for flag, port in flags.items() for word in (flag, str(port))]
    command = python("triptych", "serve", "demo", *words, "--log-path", str(folder / "logs"))
    master, url = f"http://127.0.0.1:{ports.master}", f"http://127.0.0.1:{ports.proxy}"
    first = f"http://127.0.0.1:{ports.other}" if registered else url
    second = python("proxy", "--model", "demo", "--master-url", master, "--port", str(ports.proxy))
    with contextlib.ExitStack() as running:
        running.enter_context(serving(command, first, folder / "serve.log"))
        if registered:
            running.enter_context(serving(second, url, folder / "proxy.log"))
        yield url


@contextlib.contextmanager
def load(url: str, prompts: int, rate: float, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Questions about drawn pictures; the same ones each time."""
    command = python(
        "benchmarks.serve", "--backend", "openai-chat", "--base-url", url, "--dataset-name",
        "demo", "--num-prompts", str(prompts), "--request-rate", str(rate), "--seed", "0",
    )  # fmt: skip
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    with ending(process):
        yield process


def kill_worker(module: str, port: int) -> None:
    """The worker that was started as `module` with `--port`, and its engine, by SIGKILL: each
    worker of `triptych serve` leads a group. `RuntimeError` if there is none."""
    leaders = list(_leaders_started_as(module, port))
    if len(leaders) != 1:
        raise RuntimeError(f"not one worker {module} --port {port}: {leaders}")
    os.killpg(leaders[0], signal.SIGKILL)


def _leaders_started_as(module: str, port: int) -> Iterator[int]:
    wanted = {(b"-m", module.encode()), (b"--port", str(port).encode())}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            words = (folder / "cmdline").read_bytes().split(b"\0")
            pid = int(folder.name)
            if wanted <= set(pairwise(words)) and os.getpgid(pid) == pid:
                yield pid


class Prometheus:
    """Its HTTP API. Each call raises `OSError` or `http.client.HTTPException` if it is not answered
    with a 200, `ValueError` or `KeyError` if the answer is not Prometheus'."""

    def __init__(self, url: str) -> None:
        self._url = url

    def version(self) -> str:
        return str(self._data("status/buildinfo")["version"])

    def healthy_targets(self) -> set[str]:
        """The addresses that were scraped at the last try."""
        found = self._data("targets", state="active")["activeTargets"]
        return {each["labels"]["instance"] for each in found if each["health"] == "up"}

    def alerts(self) -> list[Mapping[str, Any]]:
        return list(self._data("alerts")["alerts"])

    def rules(self) -> list[Mapping[str, Any]]:
        return [rule for group in self._data("rules")["groups"] for rule in group["rules"]]

    def series(self, expr: str, start: float, end: float) -> list[Mapping[str, Any]]:
        """The series that the query had at any time from `start` to `end` (Unix times)."""
        asked = {"query": expr, "start": f"{start:.0f}", "end": f"{end:.0f}", "step": "5"}
        return list(self._data("query_range", **asked)["result"])

    def _data(self, path: str, **asked: str) -> Any:
        answer = json.loads(call("GET", self._url, f"/api/v1/{path}?{urlencode(asked)}"))
        return answer["data"]


@contextlib.contextmanager
def prometheus(program: str, folder: Path, port: int) -> Iterator[Prometheus]:
    """Running on the configuration that lies in `folder`. `RuntimeError` if it does not start."""
    command = [
        program, "--config.file=prometheus.yaml", f"--web.listen-address=127.0.0.1:{port}",
        "--storage.tsdb.path=data",
    ]  # fmt: skip
    log = folder / "prometheus.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT)
    url = f"http://127.0.0.1:{port}"
    with ending(process):
        wait_ready(process, url, _READY_S, path="/-/ready", log=log)
        yield Prometheus(url)
