"""The master's HTTP application."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse

from protocol.errors import InvalidRequest, TriptychError
from services.http import errors
from services.http.access import STATUS_PATHS
from services.http.admin import LOG_LEVEL_PATH, check_admin_key, log_levels
from services.http.api_docs import described
from services.http.metrics import process_state
from services.http.records import RequestIdHeader
from services.http.rtp_operations import rtp_health
from services.http.version import version
from services.master.api import busy, roles
from services.master.api.rpc import RpcApp, read_body
from services.master.api.rtp import RtpContract, rtp_routes
from services.master.api.service import MasterService
from services.master.fleet.added_workers import decode_probed

_MAX_BODY = 1 << 20
_INSTANCES = "/instances"
_METRICS = "text/plain; version=0.0.4"
OPENED = STATUS_PATHS | {_INSTANCES, LOG_LEVEL_PATH, busy.PATH, roles.PATH}
"""What needs no fleet key; the last four have a key of their own."""


def create_app(service: MasterService, host: str) -> RpcApp:
    """The application; `service` is its only state, `host` its ip:port."""
    return RpcApp(service, described_app(service, host))


def described_app(service: MasterService, host: str) -> FastAPI:
    """Behind the calls of workers and proxies: what others ask."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
        async with service.running():
            yield

    app = described("Triptych master", version(), {}, lifespan)
    app.include_router(_status(service))
    app.include_router(rtp_health(lambda: not service.life.draining))
    app.include_router(_instances(service))
    app.include_router(rtp_routes(RtpContract(service, host), service.config.max_body_bytes))

    def observe(error: TriptychError) -> None:
        service.metrics.errors.labels(error.code).inc()

    errors.install(app, observe)
    app.add_middleware(RequestIdHeader)
    return app


def _status(service: MasterService) -> APIRouter:
    routes = APIRouter()

    @routes.get("/ready")
    async def ready() -> Response:
        """200 as long as the master answers, 503 once it is told to stop."""
        return Response(status_code=503 if service.life.draining else 200)

    @routes.get("/health")
    async def health() -> dict[str, Any]:
        """200 as long as the master answers; the body counts workers that may be used."""
        fleets = service.master.registry.fleets
        return {
            "master": "draining" if service.life.draining else "up",
            "shared": _shared(service),
            "models": {
                model: {
                    kind: int((pool.penalty == 0.0).sum())
                    for kind, pool in fleet.pools.items()
                    if pool.count
                }
                for model, fleet in fleets.items()
            },
        }

    @routes.get("/integrity")
    async def integrity() -> dict[str, Any]:
        """What the process holds; for the fleet."""
        return {"process": process_state()}

    @routes.get("/version")
    async def show_version() -> dict[str, str]:
        """The version of Triptych."""
        return {"version": version()}

    @routes.get("/metrics")
    async def metrics() -> Response:
        """Metrics in Prometheus' text format."""
        return Response(service.metrics.render(), media_type=_METRICS)

    @routes.get("/metrics/fleet")
    async def fleet_metrics() -> Response:
        """The metrics of all workers; for the fleet."""
        return Response(await service.fleet_metrics.page(), media_type=_METRICS)

    return routes


def _shared(service: MasterService) -> dict[str, Any] | None:
    """The masters beside this one."""
    replicator = service.replicator
    if not replicator.enabled:
        return None
    return {
        "redis": "up" if replicator.connected else "away",
        "masters": 1 + len(replicator.others),
    }


def _instances(service: MasterService) -> APIRouter:
    routes, key = APIRouter(), service.config.admin_api_key

    def check(request: Request) -> None:
        check_admin_key(request, key)

    routes.include_router(log_levels(check))
    routes.include_router(roles.role_orders(service, check))
    routes.include_router(busy.busy_thresholds(service.master.registry, check))

    @routes.get(_INSTANCES)
    async def show(request: Request) -> Response:
        """The workers that were added, each with its state and last error."""
        check(request)
        return JSONResponse({"instances": service.added.list()})

    @routes.post(_INSTANCES)
    async def add(request: Request) -> Response:
        """Add a worker that cannot register itself."""
        check(request)
        instance = decode_probed(await read_body(request.receive, _MAX_BODY) or b"")
        if service.networks.named:  # else the admin key is word enough
            info = instance.info(instance.model, instance.block_size)
            await service.networks.check_worker(info)
        service.add_instance(instance)
        return JSONResponse({"status": "added"})

    @routes.delete(_INSTANCES)
    async def remove(request: Request) -> Response:
        """Remove a worker that was added, by its role and URL; what it has goes on."""
        check(request)
        body = await read_body(request.receive, _MAX_BODY)
        if not service.remove_instance(decode_probed(body or b"")):
            raise InvalidRequest(
                "there is no instance with this role and URL", param="url", code="unknown_instance"
            )
        return JSONResponse({"status": "removed"})

    return routes
