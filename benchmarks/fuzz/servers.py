"""What is attacked: a master, workers of each role, a proxy of each dialect, with keys."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from benchmarks.common.processes import free_port
from benchmarks.fuzz.cases import Target
from benchmarks.fuzz.over_grpc import KSERVE, RTP, Door
from benchmarks.fuzz.samples import MASTERS_OWN
from benchmarks.soak.stack import MODEL, Service, connector_flags, service
from connectors.config import namespace_dir
from protocol.fleet_key import FleetKey
from protocol.pooling import POOLING_PATHS

FLEET = FleetKey("the-key-of-the-attacked")
ADMIN = "the-admin-of-the-attacked"
MOST_BYTES = 4_000_000
HEADERS = MappingProxyType({**FLEET.headers, "x-api-key": ADMIN})
TRACE = re.compile(r"^Traceback|Exception in callback|never retrieved|was never awaited", re.M)
_SAYS = re.compile(r"^(?!Traceback|Exception in )\S.*$", re.M)
_ENDS, _SHOWN = 16, 3000  # lines of a trace, characters
VECTORS = "vectors"
_KSERVE_FLAG, _RTP_FLAG = "--kserve-grpc-port", "--rtp-grpc-port"
_METADATA = tuple((name.lower(), value) for name, value in FLEET.headers.items())
_LIMITS = ("--fleet-key", FLEET.secret, "--max-body-bytes", str(MOST_BYTES))


@contextlib.contextmanager
def attacked(folder: Path) -> Iterator[list[Service]]:
    """All ready: the master, the workers, the doubles behind the relay, the proxies; what is left
    of them on leaving is ended."""
    os.environ["TRIPTYCH_NAMESPACE"] = namespace = f"fuzz-{uuid.uuid4().hex[:8]}"
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    groups = _groups(folder)
    try:
        for group in groups:
            for one in group:
                one.start()
            for one in group:
                one.wait_ready()
        yield [one for group in groups for one in group]
    finally:
        for one in (one for group in reversed(groups) for one in group):
            if hasattr(one, "process") and one.process.poll() is None:
                one.stop()
        shutil.rmtree(namespace_dir(namespace), ignore_errors=True)


def _groups(folder: Path) -> list[list[Service]]:
    master = service("master", "services.master", [*_LIMITS, "--admin-api-key", ADMIN], folder)
    pools = ["--kv-cache-memory-bytes", str(24 << 20), "--embedding-cache-bytes", str(4 << 20)]
    joined = ["--master-url", master.url, *pools, *connector_flags("shm", folder)]
    workers = [
        service(role, f"services.{role}", ["--model", MODEL, *_LIMITS, *joined], folder)
        for role in ("encoder", "prefill", "decode", "pdfusion")
    ]
    whole = workers[-1]
    workers[-1] = replace(whole, flags=[*whole.flags, *_doors(_RTP_FLAG), "--enable-lora"])
    vectors = service(
        VECTORS,
        "services.pdfusion",
        ["--model", MODEL, *_LIMITS, *pools, "--task", "embed"],
        folder,
    )
    doubles = [
        service(f"mock-{role}", "services.mock", _double(role), folder)
        for role in ("encode", "prefill", "decode")
    ]
    listed = [*_listed(workers[:3]), "--admin-api-key", ADMIN, "--model", MODEL]
    relay = ["--dialect", "openai", *_listed(doubles), "--admin-api-key", ADMIN]
    proxies = [
        service("proxy", "proxy",
                [*_LIMITS, *listed, *_doors(_KSERVE_FLAG, _RTP_FLAG)], folder),
        service("relay", "proxy", [*_LIMITS, *relay], folder),
        service("placed", "proxy",
                [*_LIMITS, "--master-url", master.url, "--admin-api-key", ADMIN,
                 "--model", MODEL], folder),
    ]  # fmt: skip
    return [[master], [*workers, vectors, *doubles], proxies]


def _doors(*flags: str) -> list[str]:
    return [part for flag in flags for part in (flag, str(free_port()))]


def doors(services: Sequence[Service]) -> list[Door]:
    """The gRPC doors that the services were told to open."""
    return [
        Door(one.name, f"{one.host}:{one.flags[list(one.flags).index(flag) + 1]}", name, _METADATA)
        for one in services
        for flag, name in ((_KSERVE_FLAG, KSERVE), (_RTP_FLAG, RTP))
        if flag in one.flags
    ]


def _double(role: str) -> list[str]:
    named = ["--role", role, "--dialect", "openai", "--speed", "20"]
    return [*named, "--model", MODEL, *_LIMITS]


def _listed(workers: Sequence[Service]) -> list[str]:
    """The flags that name an encoder, a prefill and a decode worker."""
    kinds = ("encode", "prefill", "decode")
    return [f"--{kind}-servers-urls={one.url}" for kind, one in zip(kinds, workers, strict=True)]


class Reached(Protocol):
    """What has an address and a name."""

    @property
    def name(self) -> str: ...

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...


def targets(services: Sequence[Reached]) -> list[Target]:
    """What is attacked, by the route tables that each has; the doubles are not. At the worker that
    answers vectors other routes have an answer of one kind, as at the others those for vectors."""
    real = [one for one in services if not one.name.startswith("mock-")]
    return [Target(one.name, one.host, one.port, _aimed(one), HEADERS) for one in real]


def _aimed(one: Reached) -> list[tuple[str, str]]:
    found = routes(one)
    if one.name != VECTORS:
        return found
    return [(path, method) for path, method in found if path in POOLING_PATHS]


def routes(one: Reached) -> list[tuple[str, str]]:
    """(path, method)"""
    status, table = ask(one, "GET", "/openapi.json")
    if status != 200:
        raise RuntimeError(f"{one.name} does not list its routes: {table}")
    found = [
        (path, method.upper()) for path, methods in table["paths"].items() for method in methods
    ]
    return [*found, *(MASTERS_OWN if one.name == "master" else ()), ("/nowhere", "POST")]


def ask(
    one: Reached, method: str, path: str, body: Any = None, headers: Mapping[str, str] = HEADERS
) -> tuple[int, Any]:
    """(status, decoded answer), with the keys."""
    connection = http.client.HTTPConnection(one.host, one.port, timeout=60.0)
    with contextlib.closing(connection):
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"content-type": "application/json", **headers})
        response = connection.getresponse()
        answer = response.read()
    return response.status, json.loads(answer) if answer.startswith((b"{", b"[")) else None


def traces(services: Sequence[Service]) -> list[str]:
    """Of uncaught exceptions, from the logs: how each begins and ends."""
    found = []
    for one in services:
        text = one.log.read_text(errors="replace")
        found += [f"{one.name}: {_trace(text, match.start())}" for match in TRACE.finditer(text)]
    return found


def _trace(text: str, start: int) -> str:
    """Its first line, and its last ones up to what the exception says."""
    end = _SAYS.search(text, start)
    whole = text[start : end.end() if end else start + _SHOWN].splitlines()
    lines = whole if len(whole) <= _ENDS else [whole[0], "...", *whole[-_ENDS:]]
    return "\n".join(lines)[:_SHOWN]
