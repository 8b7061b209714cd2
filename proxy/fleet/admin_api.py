"""Workers of a fleet without a master, listed, added and removed while the proxy runs. vLLM's
registration contract, as at the master for workers that cannot register."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
from fastapi import APIRouter, Request
from msgspec import Meta

from protocol.addresses import url_host
from protocol.decoding import accepted
from protocol.encoder_cache import consumer_addresses
from protocol.errors import InvalidRequest, Unavailable
from protocol.logs import worker_line
from protocol.registry import Url
from proxy.config import ProxyConfig
from proxy.fleet.fleet import Fleet
from proxy.fleet.probing import probe_one
from proxy.fleet.worker import Instance, WorkingRole, stage_of
from proxy.upstream.client import UpstreamClient
from services.http.admin import check_admin_key, log_levels
from services.http.bodies import read_body
from services.http.metrics import process_state

logger = logging.getLogger(__name__)
_PATH = "/instances"
_MAX_BODY = 1 << 20
_MOST = 4096  # workers; each one is probed again and again


class NamedWorker(msgspec.Struct):
    """Body of `POST` and `DELETE /instances`. `ec_zmq_addrs`: where vLLM's encoders push embeddings
    to, one address for each of the worker's `dp_size` data-parallel ranks; none: it fetches them. A
    worker is asked for what else needs to be known of it."""

    role: WorkingRole
    url: Url
    ec_zmq_addrs: list[str] | str | None = None
    dp_size: Annotated[int, Meta(ge=1, le=4096)] = 1


def decode_worker(data: bytes) -> NamedWorker:
    """A body, its URL without a trailing slash; `InvalidRequest` names the field at fault."""
    worker = accepted(msgspec.json.Decoder(NamedWorker).decode, data)
    if not _can_be_asked(worker.url):
        raise InvalidRequest("url must be one that requests can be sent to", param="url")
    worker.url = worker.url.rstrip("/")
    addresses = consumer_addresses(worker.ec_zmq_addrs, worker.dp_size, worker.role)
    worker.ec_zmq_addrs = None if worker.ec_zmq_addrs is None else addresses
    return worker


def _can_be_asked(url: str) -> bool:
    try:
        host, parts = url_host(url), urlsplit(url)
    except ValueError:
        return False
    plain = url.isprintable() and not any(map(str.isspace, url))
    return bool(host) and plain and not (parts.query or parts.fragment or "@" in parts.netloc)


def managing(
    fleet: Fleet,
    client: UpstreamClient,
    config: ProxyConfig,
    tell_level: Callable[[str], None] = lambda level: None,
) -> APIRouter:
    """Routes behind the admin key, which comes in `X-API-Key`. `tell_level` passes a log level on
    to further processes of the proxy."""
    routes, workers, key = APIRouter(), _Workers(fleet, client, config), config.admin_api_key
    routes.include_router(log_levels(lambda request: check_admin_key(request, key), tell_level))
    routes.get(_PATH)(workers.show)
    routes.post(_PATH)(workers.add)
    routes.delete(_PATH)(workers.remove)

    @routes.get("/integrity")
    async def integrity(request: Request) -> dict[str, Any]:
        """What the process holds."""
        check_admin_key(request, key)
        return {"process": process_state()}

    return routes


class _Workers:
    """The routes of a fleet's workers."""

    def __init__(self, fleet: Fleet, client: UpstreamClient, config: ProxyConfig) -> None:
        self._fleet = fleet
        self._client = client
        self._key = config.admin_api_key
        self._masters = config.urls_of_masters()
        self._processes = config.workers

    async def show(self, request: Request) -> dict[str, Any]:
        """The workers this proxy knows."""
        check_admin_key(request, self._key)
        return {"instances": [_shown(instance) for instance in self._fleet.all()]}

    async def add(self, request: Request) -> dict[str, Any]:
        """Add a worker: `{"role": "decode", "url": "http://…"}`. It gets requests once a probe has
        found it well, which is tried at once; adding it again changes nothing but `ec_zmq_addrs`,
        if these are given."""
        worker, instance = await self._named(request)
        if instance is None:
            if len(self._fleet.all()) >= _MOST:
                raise Unavailable("the proxy takes no more workers")
            instance = self._fleet.add(worker.url, stage_of(worker.role))
            # No request may meet it before the probe has found out what it speaks.
            instance.up = False
            instance.ec_zmq_addrs = tuple(worker.ec_zmq_addrs or ())
            worker_line(logger, logging.INFO, "joined", instance.role, instance.url, _PATH)
            await probe_one(self._fleet, self._client, instance)
        elif worker.ec_zmq_addrs is not None:
            instance.ec_zmq_addrs = tuple(worker.ec_zmq_addrs)
            self._fleet.news()
        return {"status": "added", "healthy": instance.up}

    async def remove(self, request: Request) -> dict[str, Any]:
        """Remove a worker, one given by a flag too: no new requests; what it has goes on."""
        _, instance = await self._named(request)
        if instance is None:
            raise InvalidRequest("no such instance", param="url", code="unknown_instance")
        self._fleet.remove(instance, given_up=True)
        worker_line(logger, logging.INFO, "left", instance.role, instance.url, _PATH)
        self._fleet.news()
        return {"status": "removed", "in_flight": instance.in_flight}

    async def _named(self, request: Request) -> tuple[NamedWorker, Instance | None]:
        """The worker of a call that may change the fleet, and what is known of it."""
        check_admin_key(request, self._key)
        if self._masters:
            message = f"a master knows the workers: ask {self._masters[0]}/instances"
            raise InvalidRequest(message, code="ask_the_master")
        if self._processes > 1:
            message = (
                "each of the --workers processes knows its own workers: use --master-url, or a"
                " dns+http:// URL"
            )
            raise InvalidRequest(message, code="several_processes")
        worker = decode_worker(await read_body(request, _MAX_BODY))
        return worker, self._fleet.find(stage_of(worker.role), worker.url)


def _shown(instance: Instance) -> dict[str, Any]:
    return {
        "role": instance.role,
        "url": instance.url,
        "healthy": instance.up,
        "draining": instance.draining,
        "in_flight": instance.in_flight,
        "dialect": instance.dialect,
        "resumes": instance.resumes,
        "ec_zmq_addrs": list(instance.ec_zmq_addrs),
    }
