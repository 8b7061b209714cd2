"""The HTTP application of a worker: the routes every role has, around the role's own."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import msgspec
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse

from protocol.errors import RequestAborted, TriptychError
from protocol.generate import ABORT_PATH, GENERATE_PATH, GenerateBody, decode_abort
from protocol.generate_answers import GenerateAnswer
from services.http import errors
from services.http.admin import log_levels
from services.http.api_bodies import OBJECT, RouteBodies, Table
from services.http.api_docs import described
from services.http.api_routes import GENERATING, INFORMING, POOLING, SERVING
from services.http.bodies import read_body
from services.http.metrics import process_state
from services.http.records import RequestIdHeader
from services.http.rtp_operations import rtp_health
from services.http.tokens import informing
from services.http.version import version
from services.worker import rtp_status
from services.worker.adapters import adapting
from services.worker.chat import service_of
from services.worker.profiling import profiling
from services.worker.worker import Worker

_MAX_CONTROL_BODY = 16 << 20
_BODIES: Table = MappingProxyType(
    {
        **GENERATING,
        **POOLING,
        **INFORMING,
        **SERVING,
        f"POST {GENERATE_PATH}": RouteBodies(GenerateAnswer, GenerateBody, GenerateAnswer),
        "GET /health": RouteBodies(str, media="text/plain", unwell=True),
        "GET /ready": RouteBodies(str, media="text/plain", unwell=True),
        "GET /server_info": RouteBodies(OBJECT),
    }
)


def create_app(worker: Worker) -> FastAPI:
    """The application; `worker` is its only state."""
    app = described(f"Triptych {worker.role.name} worker", version(), _BODIES)
    app.include_router(_status(worker))
    app.include_router(rtp_health(lambda: not (worker.leaving or worker.engine.outage)))
    app.include_router(_control(worker))
    # Behind the fleet key, as /drain.
    app.include_router(log_levels(lambda request: None, worker.engine.set_log_level))
    app.include_router(adapting(worker))
    app.include_router(profiling(worker))
    app.include_router(rtp_status.router(worker))
    app.include_router(informing(service_of(worker)))
    for build in worker.role.routers:
        app.include_router(build(worker))

    def observe(error: TriptychError) -> None:
        if isinstance(error, RequestAborted):
            worker.metrics.abort()
        else:
            worker.metrics.error(error.code)

    errors.install(app, observe)
    if worker.config.enable_request_id_headers:
        app.add_middleware(RequestIdHeader)
    return app


def _status(worker: Worker) -> APIRouter:
    routes = APIRouter()

    @routes.get("/health")
    async def health() -> Response:
        """200 while the engine runs, 503 with the reason otherwise. The body says if it drains."""
        outage = worker.engine.outage
        said = outage or ("draining" if worker.leaving else "")
        return Response(said, status_code=503 if outage else 200, media_type="text/plain")

    @routes.get("/ready")
    async def ready() -> Response:
        """200 while requests are taken, 503 while draining, about to stop or without an engine that
        runs. The body is this process's name, by which a restart between two probes shows."""
        taking = not worker.leaving and not worker.engine.outage
        name = worker.instance_id
        return Response(name, status_code=200 if taking else 503, media_type="text/plain")

    @routes.get("/ping")
    @routes.post("/ping")
    async def ping() -> Response:
        """The status of /health alone, as SageMaker asks for it."""
        return Response(status_code=503 if worker.engine.outage else 200)

    @routes.get("/version")
    async def show_version() -> dict[str, str]:
        """The version of Triptych."""
        return {"version": version()}

    @routes.get("/load")
    async def load() -> dict[str, float]:
        """How many requests are in progress."""
        return {"server_load": worker.in_flight}

    @routes.get("/metrics")
    async def metrics() -> Response:
        """Metrics in Prometheus' text format."""
        snapshot = await worker.engine.statistics()
        return Response(worker.metrics.render(snapshot), media_type="text/plain; version=0.0.4")

    @routes.get("/server_info")
    async def info() -> dict[str, Any]:
        """What a proxy or master needs to know of this worker."""
        return _facts(worker)

    @routes.get("/integrity")
    async def integrity() -> dict[str, Any]:
        """Compare the engine's books; `problems` is empty if nothing leaked. `process` is what the
        HTTP process holds."""
        report = await worker.engine.statistics(check=True)
        return {
            "problems": report.problems,
            "gauges": report.gauges,
            "counters": report.counters,
            "transfers": msgspec.to_builtins(report.transfers),
            "process": process_state(),
        }

    return routes


def _facts(worker: Worker) -> dict[str, Any]:
    engine = worker.engine.ready
    return {
        "instance_id": worker.instance_id,
        "role": worker.serving,
        "dialect": "tokens",
        "model": worker.model,
        "revision": worker.frontend.info.revision,
        "tokenizer": worker.frontend.tokenizer.digest,
        "adapters": worker.frontend.served.adapters,
        "parameter_bytes": engine.parameter_bytes,
        "num_blocks": engine.num_blocks,
        "block_size": engine.block_size,
        "max_model_len": engine.max_model_len,
        "max_num_seqs": worker.config.max_num_seqs,
        "kv_transfer_params": engine.kv_endpoint or None,
        "ec_transfer_params": engine.ec_endpoint or None,
        "ec_compatibility": engine.ec_compatibility if worker.frontend.info.has_media else "",
    }


def _control(worker: Worker) -> APIRouter:
    routes = APIRouter()

    @routes.post("/abort_requests")
    @routes.post(ABORT_PATH)
    async def abort(request: Request) -> Response:
        """Stop requests by id, and free what was published for them."""
        ids = decode_abort(await read_body(request, _MAX_CONTROL_BODY))
        worker.engine.abort(ids)
        return JSONResponse({"aborted": len(ids)})

    @routes.post("/reset_prefix_cache")
    async def reset_prefix_cache() -> Response:
        """Forget all KV blocks that no request uses."""
        worker.engine.reset_caches(prefix=True)
        return Response()

    @routes.post("/reset_encoder_cache")
    async def reset_encoder_cache() -> Response:
        """Forget all embeddings, and the pictures they were made of."""
        worker.media.clear()
        worker.engine.reset_caches(encoder=True)
        return Response()

    @routes.post("/reset_mm_cache")
    async def reset_mm_cache() -> Response:
        """Forget the pictures that were kept to be encoded again."""
        worker.media.clear()
        return Response()

    @routes.post("/drain")
    async def drain() -> Response:
        """Take no more requests; those under way finish."""
        worker.drain()
        return JSONResponse({"in_flight": worker.in_flight})

    @routes.post("/undrain")
    async def undrain() -> Response:
        """Take requests again, unless a master has drained the worker."""
        worker.undrain()
        return JSONResponse({"in_flight": worker.in_flight})

    return routes
