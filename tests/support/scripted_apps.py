"""The proxy's application on a port of its own, before scripted workers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from proxy.app import OPENED, served
from proxy.request_log import RequestLog
from services.frontend.models import Models
from services.frontend.render import Frontend
from services.http.access import Access, ApiKeys
from services.http.server import bind, serve
from tests.support.scripted_workers import Stack


def models_of(front: Frontend | Models) -> Models:
    return front if isinstance(front, Models) else Models([front])


@asynccontextmanager
async def app_of(
    stack: Stack,
    front: Frontend | Models,
    log: RequestLog | None = None,
    keys: tuple[str, ...] = (),
) -> AsyncIterator[str]:
    """The URL of the application; its requests' lines go to `log`."""
    listener, ready, stop = bind("127.0.0.1", 0), asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def during() -> AsyncIterator[None]:
        ready.set()
        yield

    gateway = replace(stack.gateway, models=models_of(front))
    gateway.log = log or gateway.log
    app = served(gateway, Access(clients=ApiKeys(keys), opened=OPENED))
    task = asyncio.create_task(serve(app, listener, "proxy", stop, during=during()))
    try:
        await ready.wait()
        yield "http://{}:{}".format(*listener.getsockname()[:2])
    finally:
        stop.set()
        await task
