"""docs/routes.md from the routers of the three servers, which scripts.api_reference writes.

Routes for clients are in docs/api.md; these are what operators, monitors and the fleet ask.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from fastapi import FastAPI

from protocol.fleet_key import FleetKey
from protocol.settings import resolve
from proxy import app as proxy_app
from proxy.assembly import make_gateway
from proxy.config import ProxyConfig
from proxy.upstream.client import UpstreamClient
from services.frontend.models import Models
from services.frontend.render import Frontend
from services.http.access import STATUS_PATHS, Access, ApiKeys
from services.http.api_routes import GENERATING, INFORMING, POOLING
from services.master.api.app import OPENED, create_app, described_app
from services.master.api.service import MasterService
from services.master.config import MasterConfig
from services.worker.app import create_app as worker_app
from services.worker.config import WorkerConfig
from services.worker.engine_client import EngineClient
from services.worker.metrics import WorkerMetrics
from services.worker.roles import PDFUSION
from services.worker.worker import Worker

PATH = Path(__file__).parents[1] / "docs" / "routes.md"
_FOR_CLIENTS = GENERATING.keys() | POOLING.keys() | INFORMING.keys()
_KEY = b"k" * 16
# What workers and proxies say to a master, which passes the web framework by.
CALLS: Mapping[str, str] = MappingProxyType(
    {
        "POST /register": "A worker says what it is, once its engine is ready.",
        "POST /heartbeat": "A worker says how busy it is, and hears its role and whether to drain.",
        "POST /deregister": "A worker stops.",
        "POST /drain": 'Have a worker take no more requests: `{"instance_id": "…"}`; with'
        ' `"draining": false` it takes them again.',
        "POST /schedule": "A proxy asks for the workers of a request.",
        "POST /schedules": "A proxy asks for those of several requests, none of which waits.",
        "POST /suspect": "A proxy could not connect to a worker.",
        "POST /finished": "A proxy says how requests ended.",
        "GET /workers": "The workers, and what has changed since `after`, at the latest in"
        " `wait_s` seconds.",
    }
)
_HEAD = """\
# Routes for operators, monitors and the fleet

<!-- Made by `python -m scripts.api_reference` from the routers: do not edit. -->

Every route of a proxy, a worker and a master but those for clients, whose fields are in
[api.md](api.md). Each process describes its own at `/docs` and `/openapi.json`.

The column "key" says what opens a route where the process has keys ([SECURITY.md](../SECURITY.md));
the fleet key opens every route of workers and masters:

- **none**: open, also to load balancers and monitors. With `--protect-metrics` `/metrics` needs a
  key, and `/health` tells its status alone without one.
- **API**: `Authorization: Bearer KEY`, a key of `--api-key`. A worker without `--fleet-key` takes
  it for all its routes.
- **admin**: `X-API-Key: KEY`, the key of `--admin-api-key`. Without that flag the route is closed.
- **fleet**: `X-Triptych-Fleet-Key: KEY`, the key of `--fleet-key`. Without that flag the route is
  open to all who reach the process.
"""
_PROXY = """\
## Proxy

Routes that change workers go to every worker, or to the one that the parameter `worker` names by
its URL. The answer has each worker's status and answer; its own status is the highest of them.
"""
_WORKER = """\
## Worker

Of all roles alike; `/start_profile` and `/stop_profile` with `--profile-folder`.
"""
_MASTER = """\
## Master
"""
_RPC = """\
### What workers and proxies say to a master

JSON, or msgpack where `content-type` says `application/msgpack`.
"""


def render() -> str:
    """The document."""
    return asyncio.run(_render())


async def _render() -> str:
    client = UpstreamClient(1.0)
    frontend = Frontend.load(_worker_config().to_config())
    try:
        proxy = _rows(_proxy(frontend, client), _key_of_proxy)
        worker = _rows(worker_app(_worker(frontend)), _key_of_worker)
    finally:
        await frontend.close()
        await client.close()
    service = MasterService(MasterConfig())
    master = _rows(described_app(service, "127.0.0.1:7000"), _key_of_master)
    assert set(create_app(service, "").calls) == CALLS.keys(), "CALLS are not those of the master"
    calls = [_row([name], "fleet", does) for name, does in CALLS.items()]
    sections = ((_PROXY, proxy), (_WORKER, worker), (_MASTER, master), (_RPC, calls))
    return "\n".join((_HEAD, *(_section(head, rows) for head, rows in sections)))


def _proxy(frontend: Frontend, client: UpstreamClient) -> FastAPI:
    """One that renders; a relaying one has the same routes for operators."""
    flags = [
        "--model",
        "demo",
        "--dialect",
        "tokens",
        "--decode-servers-urls",
        "http://127.0.0.1:1",
    ]
    config = resolve(ProxyConfig, flags, {})
    return proxy_app.create_app(make_gateway(config, Models([frontend]), client, client))


def _worker_config() -> WorkerConfig:
    return resolve(WorkerConfig, ["--model", "demo", "--profile-folder", "/traces"], {})


def _worker(frontend: Frontend) -> Worker:
    """None of its routes is asked, so its engine need not run."""
    engine = EngineClient.__new__(EngineClient)
    return Worker(PDFUSION, _worker_config(), engine, frontend, WorkerMetrics("pdfusion"))


def _key_of_proxy(method: str, path: str) -> str:
    if path in proxy_app.OPERATORS:
        return "admin"
    access = Access(clients=ApiKeys([_KEY.decode()]), opened=proxy_app.OPENED)
    return "API" if access.judge(path, b"", b"", method) else "none"


def _key_of_worker(method: str, path: str) -> str:
    access = Access(FleetKey(_KEY.decode()), ApiKeys([_KEY.decode()]))
    if access.judge(path, b"", b"", method) is None:
        return "none"
    return "fleet" if access.judge(path, b"", b"Bearer " + _KEY, method) else "API"


def _key_of_master(method: str, path: str) -> str:
    if path in OPENED - STATUS_PATHS:
        return "admin"
    access = Access(FleetKey(_KEY.decode()), opened=OPENED)
    return "fleet" if access.judge(path, b"", b"", method) else "none"


def _rows(app: FastAPI, key_of: Callable[[str, str], str]) -> list[str]:
    """A row for each thing that can be done, with all routes that do it."""
    found: dict[tuple[str, str], list[str]] = {}
    for method, path, does in sorted(_routes(app), key=lambda each: (each[1], each[0])):
        if (route := f"{method} {path}") not in _FOR_CLIENTS:
            assert does, f"{route}: its function needs a docstring"
            found.setdefault((key_of(method, path), does), []).append(route)
    return [_row(routes, key, does) for (key, does), routes in found.items()]


def _routes(app: FastAPI) -> Iterator[tuple[str, str, str]]:
    """(method, path, what it does) of each."""
    for path, operations in app.openapi()["paths"].items():
        for method, operation in operations.items():
            yield method.upper(), path, " ".join(operation.get("description", "").split())


def _section(head: str, rows: Iterable[str]) -> str:
    return "\n".join([head, "| route | key | What it does |", "|---|---|---|", *rows, ""])


def _row(routes: Iterable[str], key: str, does: str) -> str:
    named = ", ".join(f"`{route}`" for route in routes)
    return f"| {named} | {key} | {does} |"
