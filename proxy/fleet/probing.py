"""Asking workers how they are, and what they are."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from protocol.decoding import decoded
from protocol.errors import (
    DeadlineExceeded,
    InvalidRequest,
    RateLimited,
    RequestError,
    TriptychError,
    Unavailable,
    UpstreamError,
)
from protocol.generate import GENERATE_PATH, RENDER_PATH
from protocol.openai_answers import OWNER
from proxy.fleet.fleet import Fleet
from proxy.fleet.worker import Dialect, Instance
from proxy.upstream.client import UpstreamClient
from proxy.upstream.failures import NOT_A_WORKER, CallFailed

logger = logging.getLogger(__name__)
_AGAIN_S = 0.2
_LONGEST_NAME = 256
_JSON: Mapping[str, str] = MappingProxyType({"content-type": "application/json"})


async def probe(fleet: Fleet, client: UpstreamClient, interval_s: float) -> None:
    """Ask every worker for its health, again and again, until cancelled; those that a call has
    found gone at once."""
    while True:
        await probe_once(fleet, client)
        due = time.monotonic() + interval_s
        while (left_s := due - time.monotonic()) > 0:
            if lost := await fleet.doubtful(left_s):
                await _probe_all(fleet, client, lost)
                await asyncio.sleep(min(_AGAIN_S, left_s))  # calls may find it gone again at once


async def probe_first(fleet: Fleet, client: UpstreamClient, patience_s: float = 10.0) -> None:
    """Until everybody who is there has said what it is, or for so long: a worker that has just come
    up can be slow to."""
    deadline = time.monotonic() + patience_s
    while await probe_once(fleet, client):
        if time.monotonic() > deadline:
            return
        await asyncio.sleep(_AGAIN_S)


async def probe_once(fleet: Fleet, client: UpstreamClient) -> bool:
    """Whatever one worker does to its probe, the others are probed. True if it would be worth it to
    ask again at once."""
    return await _probe_all(fleet, client, list(fleet.to_probe()))


async def _probe_all(fleet: Fleet, client: UpstreamClient, asked: list[Instance]) -> bool:
    probes = (probe_one(fleet, client, instance) for instance in asked)
    results = await asyncio.gather(*probes, return_exceptions=True)
    for instance, failure in zip(asked, results, strict=True):
        if isinstance(failure, Exception):
            logger.error("probing %s", instance.url, exc_info=failure)
            instance.refused()
    fleet.news()
    return True in results


async def probe_one(fleet: Fleet, client: UpstreamClient, instance: Instance) -> bool:
    """A refused connection means down at once, a late answer only if it happens again and again.
    True if it is there, and has not said how it is spoken to: it gets no requests until then."""
    try:
        takes_requests = await _asked(client, instance)
    except DeadlineExceeded:
        _late(fleet, instance)
        return _hold(instance, instance.up)
    except TriptychError:
        instance.refused()
        return False
    if instance.suspect and not instance.vouched:
        instance.known = False  # it may be another life of it
    if not instance.known and not instance.departed:
        await _learn(client, instance, not fleet.forced)
    before = instance.up, instance.draining
    instance.answered()
    if not takes_requests:
        instance.draining = True  # until its next life; a master may have said so too
    held = _hold(instance, before[0])
    if before != (instance.up, instance.draining):
        fleet.news()
    return held


def _late(fleet: Fleet, instance: Instance) -> None:
    was_lost = instance.lost
    instance.late(alone=not fleet.replaceable(instance))
    if instance.lost and not was_lost:
        logger.warning("%s has been silent for too long: given up", instance.url)


def _hold(instance: Instance, was_up: bool) -> bool:
    """Send nothing to a worker of which it is not known what it speaks; whether that is so."""
    if instance.dialect is not None:
        return False
    instance.up = False
    if was_up:
        logger.info("%s has not said how it is spoken to (--dialect says it)", instance.url)
    return True


async def _asked(client: UpstreamClient, instance: Instance) -> bool:
    """Whether a worker that is well takes requests, which ours say; raises if it is not well."""
    takes_requests = True
    if instance.dialect == "tokens":
        try:
            _notice(instance, await client.get(f"{instance.url}/ready"))
            return True
        except Unavailable:
            takes_requests = False
        except RequestError:
            pass  # there is no such route
    await client.get(f"{instance.url}/health")
    return takes_requests


def _notice(instance: Instance, name: bytes) -> None:
    """A worker that has restarted since the last probe is asked all anew."""
    process = name[:_LONGEST_NAME].decode("latin-1")
    if instance.process and process != instance.process:
        instance.known = False
    instance.process = process


async def _learn(client: UpstreamClient, instance: Instance, ask_dialect: bool) -> None:
    """What a worker says of itself, if it does. One that could not say it in time is asked again:
    it is not taken for one that has nothing to say. Of another engine a master tells the rest."""
    told = instance.vouched and instance.dialect == "openai"
    if not (told or await _told(client, instance, ask_dialect)):
        return
    resumes: bool | None = False
    if instance.dialect == "openai" and instance.role == "decode":
        resumes = await _resumes(client, instance.url)
    instance.resumes = bool(resumes)
    instance.known = instance.dialect is not None and resumes is not None


async def _told(client: UpstreamClient, instance: Instance, ask_dialect: bool) -> bool:
    """What stands in its /server_info; False if that could not be found out. Another engine's tells
    nothing of use, and takes vLLM seconds."""
    models = await _object_at(client, f"{instance.url}/v1/models")
    foreign = models is not None and _foreign(models)
    info = {} if foreign else await _object_at(client, f"{instance.url}/server_info")
    if info is None:
        return False
    if ask_dialect:
        instance.dialect = await _dialect(client, instance, info, models) or instance.dialect
    names = _models_of(models or {})
    instance.model = _text(info, "model") or next(iter(names), "")
    instance.models = frozenset((instance.model, *names))
    instance.revision = _text(info, "revision")
    instance.kv_endpoint = _object(info, "kv_transfer_params")
    instance.ec_endpoint = _object(info, "ec_transfer_params")
    instance.max_running = _count(info, "max_num_seqs")
    instance.block_size = _count(info, "block_size")
    return True


async def _dialect(
    client: UpstreamClient,
    instance: Instance,
    info: dict[str, Any],
    models: dict[str, Any] | None,
) -> Dialect | None:
    """Our workers say theirs. Others are taken for vLLM's if they say what models they serve."""
    if info.get("dialect") == "tokens":
        return "tokens"
    version = models or await _object_at(client, f"{instance.url}/version")
    return "openai" if version else None


def _foreign(models: dict[str, Any]) -> bool:
    """Whether an answer to /v1/models names another engine as the models' owner."""
    return any(owner != OWNER for owner in _of_cards(models, "owned_by"))


def _models_of(models: dict[str, Any]) -> list[str]:
    """The names in an answer to /v1/models, the first one first."""
    return _of_cards(models, "id")


def _of_cards(models: dict[str, Any], name: str) -> list[str]:
    cards = models.get("data")
    found = [c.get(name) for c in cards if isinstance(c, dict)] if isinstance(cards, list) else []
    return [value for value in found if isinstance(value, str)]


async def _resumes(client: UpstreamClient, url: str) -> bool | None:
    """Whether a worker could go on with another's stream: it renders a chat to what generates it,
    and generates from tokens. None if that could not be found out in time."""
    for path in (RENDER_PATH, GENERATE_PATH):
        has = await _has_route(client, url + path)
        if not has:
            return has
    return True


async def _has_route(client: UpstreamClient, url: str) -> bool | None:
    """An empty request costs nothing: who has the route complains of what is missing in it. (Asked
    with another method, vLLM says the same whether the route is enabled or not.)"""
    try:
        await client.post(url, b"{}", _JSON)
    except (DeadlineExceeded, RateLimited, Unavailable):
        return None
    except CallFailed as failure:
        return False if failure.kind == NOT_A_WORKER else None
    except TriptychError as error:
        return isinstance(error, InvalidRequest)
    return False


def _object(info: dict[str, Any], name: str) -> dict[str, Any] | None:
    found = info.get(name)
    return found if isinstance(found, dict) else None


def _text(info: dict[str, Any], name: str) -> str:
    found = info.get(name)
    return found if isinstance(found, str) else ""


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
