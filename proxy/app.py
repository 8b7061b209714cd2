"""The proxy's HTTP application, and the gRPC doors before the same service."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

from fastapi import APIRouter, FastAPI, Response
from fastapi.responses import JSONResponse
from fastapi.routing import iter_route_contexts
from starlette.types import ASGIApp

from protocol.anthropic import MESSAGES_PATH
from protocol.errors import ConfigError, RequestAborted, TriptychError
from protocol.openai import BATCH_PATH, CHAT_PATH, COMPLETIONS_PATH
from protocol.pooling import POOLING_PATHS
from protocol.responses import RESPONSES_PATH
from protocol.rtp_requests import RAW_PATH
from proxy.api_routes import bodies_of
from proxy.fleet.admin_api import managing
from proxy.fleet.fleet_log import mistakes_of
from proxy.gateway import Gateway
from proxy.page import files as page_files
from proxy.page import routes as page_routes
from proxy.readiness import able, unencoded, well
from proxy.relay import passthrough
from proxy.relay.model_list import listing
from proxy.relay.operating import operating
from proxy.relay.passed_routes import OPERATED
from proxy.rtp_status import rtp_status
from proxy.siblings import Siblings
from services.frontend.models import Models
from services.grpc.doors import Behind, Place, door
from services.http import errors
from services.http.access import STATUS_PATHS, Access, gated
from services.http.admin import LOG_LEVEL_PATH
from services.http.anthropic import messaging
from services.http.api_docs import described
from services.http.browsers import for_browsers
from services.http.openai import Service, generating
from services.http.pooling import pooling
from services.http.records import Recorded, RequestIdHeader
from services.http.responses import responding
from services.http.rtp_frontend import ALIAS_PATH, rtp_frontend
from services.http.rtp_operations import EPLB_PATH, UPDATE_PATH, rtp_health
from services.http.tokens import informing
from services.http.version import version

OPERATORS = {route.path for route in OPERATED} | frozenset(
    (
        *("/instances", "/integrity", LOG_LEVEL_PATH, UPDATE_PATH, EPLB_PATH),
        *(page_routes.FLEET, page_routes.REQUESTS),
    )
)
"""What needs the admin key."""
_PAGE = page_files.paths() | {page_routes.ABOUT}
OPENED = STATUS_PATHS | OPERATORS | _PAGE
"""What needs no API key; the operators' routes need the admin key."""
GENERATING_PATHS = (
    CHAT_PATH, BATCH_PATH, COMPLETIONS_PATH, MESSAGES_PATH, RESPONSES_PATH, ALIAS_PATH, RAW_PATH,
)  # fmt: skip
"""Routes whose requests are recorded."""


def create_app(gateway: Gateway, siblings: Siblings | None = None) -> FastAPI:
    """The application; `gateway` is its only state. `siblings`: further processes of the proxy."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
        async with gateway.beside():
            yield

    bodies = bodies_of(renders=gateway.models is not None, pools=pools(gateway))
    app = described("Triptych proxy", version(), bodies, lifespan)
    if gateway.models is not None:
        service = service_of(gateway, gateway.models)
        app.include_router(generating(service))
        app.include_router(messaging(service))
        app.include_router(responding(service, gateway.config.response_store_bytes))
        app.include_router(rtp_frontend(service))
        if pools(gateway):
            app.include_router(pooling(service))
        app.include_router(informing(service))
    else:
        app.include_router(passthrough.relayed())
        app.include_router(listing(gateway))
    if gateway.config.dialect != "tokens":
        # Of the routes that are passed on, those that a proxy with a model answers by itself.
        taken = {route.path or "" for route in iter_route_contexts(app.routes)}
        app.include_router(passthrough.passing(gateway, taken))
    app.include_router(operating(gateway))
    app.include_router(_status(gateway, siblings))
    app.include_router(page_files.showing(page=gateway.config.page))
    if gateway.config.page:
        app.include_router(page_routes.telling(gateway))
    app.include_router(rtp_health(lambda: able(gateway) and not gateway.life.draining, home=False))
    app.include_router(rtp_status(gateway))
    tell = siblings.tell_level if siblings is not None else lambda level: None
    app.include_router(managing(gateway.fleet, gateway.client, gateway.config, tell))

    def observe(error: TriptychError) -> None:
        if isinstance(error, RequestAborted):
            gateway.metrics.aborted.inc()
        else:
            gateway.metrics.errors.labels(error.code).inc()

    errors.install(app, observe)
    return app


def served(gateway: Gateway, access: Access, siblings: Siblings | None = None) -> ASGIApp:
    """The application behind its keys and the rules for browsers; every answer, a refusal
    too, has an id and is recorded."""
    app = for_browsers(gated(create_app(gateway, siblings), access), gateway.config)
    paths = (*GENERATING_PATHS, *(POOLING_PATHS if pools(gateway) else ()))
    return RequestIdHeader(Recorded(app, paths, gateway.over, gateway.begun))


def service_of(gateway: Gateway, models: Models) -> Service:
    """What answers the requests to `models`, which are rendered here."""
    return Service(
        models=models,
        run=gateway.run,
        stop_choice=lambda rendered, index: None,  # its tokens are ignored until all have ended
        admitted=gateway.in_flight.counted,
        bodies=gateway.bodies,
        timeout_s=gateway.config.request_timeout,
    )


def pools(gateway: Gateway) -> bool:
    """Whether vectors and scores are answered here: by a model that has them, or with an error by
    one whose workers are none of another engine, which may have others."""
    models = gateway.models
    if models is None or gateway.config.dialect == "openai":
        return False
    has_some = any(frontend.info.pooler is not None for frontend in models.all)
    return has_some or gateway.config.dialect == "tokens"


def _status(gateway: Gateway, siblings: Siblings | None) -> APIRouter:
    routes = APIRouter()

    @routes.get("/live")
    async def live() -> Response:
        """200 as long as the process answers."""
        return Response()

    @routes.get("/ready")
    async def ready() -> Response:
        """200 if requests without media can be served and had better come here, 503 once the proxy
        is told to stop. The body says if requests with media are refused."""
        status = 200 if able(gateway) and not gateway.life.draining else 503
        return Response("\n".join(unencoded(gateway)), status, media_type="text/plain")

    @routes.get("/health")
    async def health() -> Response:
        """200 if requests can be served, those with media too; the body tells each worker's state,
        which workers cannot serve a request together, which stage is missing, whether the proxy is
        about to stop, and of several models which ones can be served."""
        fleet = gateway.fleet
        stages = {"encode": fleet.encode, "prefill": fleet.prefill, "decode": fleet.decode}
        workers = {
            role: {instance.url: "up" if instance.up else "down" for instance in stage}
            for role, stage in stages.items()
        }
        own = "draining" if gateway.life.draining else "up"
        problems = [*mistakes_of(fleet), *unencoded(gateway)]
        body = {"proxy": own, **workers, "problems": problems}
        if gateway.models is not None and gateway.models.several:
            names = [one.name for one in gateway.models.all]
            body["models"] = {name: "up" if well(gateway, name) else "down" for name in names}
        return JSONResponse(body, status_code=200 if well(gateway) else 503)

    @routes.get("/ping")
    @routes.post("/ping")
    async def ping() -> Response:
        """The status of /health alone, as SageMaker asks for it."""
        return Response(status_code=200 if well(gateway) else 503)

    @routes.get("/load")
    async def load() -> dict[str, int]:
        """How many requests are in progress."""
        return {"server_load": gateway.in_flight.count}

    @routes.get("/version")
    async def show_version() -> dict[str, str]:
        """The version of Triptych."""
        return {"version": version()}

    @routes.get("/metrics")
    async def metrics() -> Response:
        """Metrics in Prometheus' text format, of all --workers processes."""
        text = gateway.metrics.render()
        if siblings is not None:
            text = await siblings.metrics(text)
        return Response(text, media_type="text/plain; version=0.0.4")

    return routes


@contextlib.asynccontextmanager
async def grpc_doors(gateway: Gateway, access: Access) -> AsyncGenerator[tuple[int, int], None]:
    """KServe's and RTP-LLM's protocols while the context lasts; gives their ports, 0 for none.
    `ConfigError` if the library or the model is missing."""
    config = gateway.config
    place = Place("proxy", config.host, config.max_in_flight, config)

    def behind() -> Behind:
        if gateway.models is None:
            raise ConfigError(
                "--kserve-grpc-port, --rtp-grpc-port: they need a model that the proxy renders for:"
                " not with --dialect openai"
            )
        service = service_of(gateway, gateway.models)

        def takes(model: str) -> bool:
            return able(gateway, model) and not gateway.life.draining

        return Behind(service, takes, access)

    async with (
        door("kserve", config.kserve_grpc_port, place, behind) as kserve,
        door("rtp", config.rtp_grpc_port, place, behind) as rtp,
    ):
        yield kserve, rtp
