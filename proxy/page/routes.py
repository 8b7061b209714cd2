"""The JSON that the page shows. Who asked a question sees its stages; operators see the fleet."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request

from proxy.gateway import Gateway
from proxy.page.figures import WorkerFigures
from proxy.page.views import request_view, stages_view, worker_view
from services.http.admin import check_admin_key
from services.http.version import version

ABOUT = "/page/about"
STAGES = "/page/stages"
FLEET = "/page/fleet"
REQUESTS = "/page/requests"
_SHOWN = 40


def telling(gateway: Gateway) -> APIRouter:
    """Routes for the page; nothing that they do changes anything."""
    routes = APIRouter()
    config, recent = gateway.config, gateway.recent
    figures = WorkerFigures(gateway.client)

    @routes.get(ABOUT)
    async def about() -> dict[str, Any]:
        """What the page asks first: which keys are needed. Needs none itself."""
        return {
            "version": version(),
            "api_key": config.asks_for_api_keys,
            "admin_key": bool(config.admin_api_key),
        }

    @routes.get(STAGES)
    async def stages(id: str = "") -> dict[str, Any]:
        """The stages of a request that the page has asked, while it runs and for a while after
        it; null if it has not come yet, or is forgotten. `id`: its X-Request-Id, which only who
        asked knows."""
        record = recent.asked_by_page(id)
        return {"request": None if record is None else stages_view(record, time.monotonic())}

    @routes.get(FLEET)
    async def fleet(request: Request) -> dict[str, Any]:
        """Each worker with its load, and the proxy's own. Needs the admin key in X-API-Key."""
        check_admin_key(request, config.admin_api_key)
        recent.watch()
        workers = gateway.fleet.all()
        known = figures.of(workers)
        admission = gateway.planner.admission
        return {
            "workers": [worker_view(one, known.get(one.url, {})) for one in workers],
            "in_flight": gateway.in_flight.count,
            "waiting": admission.waiting if admission is not None else 0,
            "placed_by": "master" if gateway.planner.asks else "proxy",
            "draining": gateway.life.draining,
        }

    @routes.get(REQUESTS)
    async def requests(request: Request) -> dict[str, Any]:
        """The last requests, newest first, those in progress too. Needs the admin key in
        X-API-Key. While this is asked again and again, relayed requests are recorded and the
        master gives the reasons for its placements."""
        check_admin_key(request, config.admin_api_key)
        recent.watch()
        now = time.monotonic()
        urls = {i.instance_id: i.url for i in gateway.fleet.all() if i.instance_id}
        newest = list(recent)[: -_SHOWN - 1 : -1]
        return {"requests": [request_view(record, now, urls) for record in newest]}

    return routes
