"""`/worker_status` and `/cache_status` of a mock worker, as RTP-LLM's master asks for them."""

from __future__ import annotations

from aiohttp import web

from protocol.kv_events import short_key
from protocol.rtp_status import CacheStatus, StatusQuery, parse_query
from services.engine.reports import load_of
from services.membership.rtp_status import cache_status, work_status
from services.mock.answering import Answering
from services.mock.instance import Instance


async def cache(instance: Instance, answering: Answering) -> web.StreamResponse:
    """The prefix cache: its room, and its keys if they have changed."""
    return answering.json(_cache(instance, _asked(answering)))


async def work(instance: Instance, answering: Answering) -> web.StreamResponse:
    """What runs, what has ended since, and the prefix cache."""
    query = _asked(answering)
    status = work_status(
        instance.serving,
        instance.settings.port,
        load_of(instance.engine),
        instance.engine.counters(),
        instance.tasks,
        since=query.ended_since,
        room=instance.config.max_num_queued - instance.in_flight,
        alive=not instance.draining,
        cache=_cache(instance, query) if instance.settings.generates else None,
    )
    return answering.json(status)


def _asked(answering: Answering) -> StatusQuery:
    return parse_query(answering.body, dict(answering.request.query))


def _cache(instance: Instance, query: StatusQuery) -> CacheStatus:
    """A worker that only encodes has no KV, and no keys to tell of."""
    engine, keys = instance.engine, None
    blocks = engine.blocks
    if engine.settings.generates and query.keys_since != blocks.version:
        keys = [short_key(key) for key in blocks.known()]
    return cache_status(load_of(engine), blocks.block_size, blocks.version, keys)
