"""Asking workers how they are, and what they are."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from protocol.decoding import decoded
from protocol.errors import (
    DeadlineExceeded,
    RateLimited,
    RequestError,
    TriptychError,
    Unavailable,
    UpstreamError,
)
from proxy.client import UpstreamClient
from proxy.fleet import Fleet
from proxy.instance import Dialect, Instance

logger = logging.getLogger(__name__)


async def probe(fleet: Fleet, client: UpstreamClient, interval_s: float) -> None:
    """Ask every worker for its health, again and again, until cancelled."""
    while True:
        await probe_once(fleet, client)
        await asyncio.sleep(interval_s)


async def probe_once(fleet: Fleet, client: UpstreamClient) -> None:
    """Whatever one worker does to its probe, the others are probed."""
    asked = list(fleet.to_probe())
    probes = (probe_one(fleet, client, instance) for instance in asked)
    results = await asyncio.gather(*probes, return_exceptions=True)
    for instance, failure in zip(asked, results, strict=True):
        if isinstance(failure, Exception):
            logger.error("probing %s", instance.url, exc_info=failure)
            instance.refused()
    fleet.news()


async def probe_one(fleet: Fleet, client: UpstreamClient, instance: Instance) -> None:
    """A refused connection means down at once, a late answer only if it happens again and again."""
    try:
        takes_requests = await _asked(client, instance)
    except DeadlineExceeded:
        instance.late()
        return
    except TriptychError:
        instance.refused()
        return
    if instance.suspect and not instance.vouched:
        instance.known = False  # it may be another life of it
    if not instance.known and not instance.departed:
        await _learn(client, instance, not fleet.forced)
    before = instance.up, instance.draining
    instance.answered()
    if not takes_requests:
        instance.draining = True  # until its next life; a master may have said so too
    if before != (instance.up, instance.draining):
        fleet.news()


async def _asked(client: UpstreamClient, instance: Instance) -> bool:
    """Whether a worker that is well takes requests, which ours say; raises if it is not well."""
    takes_requests = True
    if instance.dialect == "tokens":
        try:
            await client.get(f"{instance.url}/ready")
            return True
        except Unavailable:
            takes_requests = False
        except RequestError:
            pass  # there is no such route
    await client.get(f"{instance.url}/health")
    return takes_requests


async def _learn(client: UpstreamClient, instance: Instance, ask_dialect: bool) -> None:
    """What a worker says of itself, if it does. One that could not say it in time is asked again:
    it is not taken for one that has nothing to say."""
    info = await _object_at(client, f"{instance.url}/server_info")
    if info is None:
        return
    if ask_dialect:
        instance.dialect = await _dialect(client, instance, info) or instance.dialect
    instance.kv_endpoint = _object(info, "kv_transfer_params")
    instance.ec_endpoint = _object(info, "ec_transfer_params")
    instance.max_running = _count(info, "max_num_seqs")
    instance.block_size = _count(info, "block_size")
    instance.known = instance.dialect is not None


async def _dialect(
    client: UpstreamClient, instance: Instance, info: dict[str, Any]
) -> Dialect | None:
    """Our workers say theirs. Others are taken for vLLM's if they say what models they serve."""
    if info.get("dialect") == "tokens":
        return "tokens"
    models = await _object_at(client, f"{instance.url}/v1/models")
    version = models or await _object_at(client, f"{instance.url}/version")
    return "openai" if version else None


def _object(info: dict[str, Any], name: str) -> dict[str, Any] | None:
    found = info.get(name)
    return found if isinstance(found, dict) else None


def _count(info: dict[str, Any], name: str) -> int:
    found = info.get(name)
    return found if isinstance(found, int) and found > 0 else 0


async def _object_at(client: UpstreamClient, url: str) -> dict[str, Any] | None:
    """The object at a URL, empty if there clearly is none, None if that could not be found out."""
    try:
        answer = await client.get(url)
    except TriptychError as error:
        return {} if _is_no_such_thing(error) else None
    try:
        return decoded(answer, dict[str, Any], fail=UpstreamError)
    except UpstreamError:
        return {}


def _is_no_such_thing(error: TriptychError) -> bool:
    """Whether a worker has refused the question, as opposed to failing at it, being busy, or not
    being heard. Statuses without a class of their own are `UpstreamError` itself."""
    refused = isinstance(error, RequestError) and not isinstance(error, RateLimited)
    return refused or type(error) is UpstreamError
