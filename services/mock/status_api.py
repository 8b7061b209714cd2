"""Routes of a mock worker around its work: health, load, caches, faults, RTP-LLM's status."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from aiohttp import web

from protocol.bounds import Int64
from protocol.decoding import accepted
from protocol.kv_events import short_key
from protocol.rtp_status import CacheStatus, StatusQuery, parse_query
from services.engine.reports import load_of
from services.http.metrics import process_state
from services.http.version import version
from services.membership.rtp_status import cache_status, work_status
from services.mock.answering import Answering
from services.mock.chat import text_of
from services.mock.faults import parse_faults
from services.mock.instance import Instance
from services.mock.metrics import metrics_of
from services.mock.openai_api import models

_T = TypeVar("_T")


class _Tokenize(msgspec.Struct):
    prompt: str


class _Detokenize(msgspec.Struct):
    tokens: list[Int64]


def _decoded(body: bytes, kind: type[_T]) -> _T:
    return accepted(lambda data: msgspec.json.decode(data, type=kind), body)


async def health(instance: Instance, answering: Answering) -> web.StreamResponse:
    return answering.empty()


async def ready(instance: Instance, answering: Answering) -> web.StreamResponse:
    """200 while requests are taken, 503 while draining; the body is this worker's name."""
    if instance.leaving:
        return answering.empty(503)
    return answering.plain(instance.settings.instance_id)


async def show_version(instance: Instance, answering: Answering) -> web.StreamResponse:
    return answering.json({"version": version()})


async def load(instance: Instance, answering: Answering) -> web.StreamResponse:
    return answering.json({"server_load": instance.in_flight})


async def metrics(instance: Instance, answering: Answering) -> web.StreamResponse:
    text = metrics_of(instance)
    return web.Response(body=text, headers={"content-type": "text/plain; version=0.0.4"})


async def server_info(instance: Instance, answering: Answering) -> web.StreamResponse:
    return answering.json(instance.server_info())


async def list_models(instance: Instance, answering: Answering) -> web.StreamResponse:
    return answering.json(models(instance))


async def tokenize(instance: Instance, answering: Answering) -> web.StreamResponse:
    """Token ids of a text: its UTF-8 bytes."""
    ids = list(_decoded(answering.body, _Tokenize).prompt.encode())
    return answering.json(
        {"tokens": ids, "count": len(ids), "max_model_len": instance.settings.max_model_len}
    )


async def detokenize(instance: Instance, answering: Answering) -> web.StreamResponse:
    """Text of token ids."""
    tokens = _decoded(answering.body, _Detokenize).tokens
    return answering.json({"prompt": text_of(tokens)})


async def integrity(instance: Instance, answering: Answering) -> web.StreamResponse:
    """Compare the engine's books; `problems` is empty if nothing leaked."""
    engine = instance.engine
    report = {
        "problems": engine.check_integrity(),
        "gauges": engine.gauges(),
        "counters": engine.counters(),
        "process": process_state(),
    }
    return answering.json(report)


async def reset_prefix_cache(instance: Instance, answering: Answering) -> web.StreamResponse:
    instance.engine.reset_caches(prefix=True)
    instance.driver.wake()
    return answering.empty()


async def reset_encoder_cache(instance: Instance, answering: Answering) -> web.StreamResponse:
    instance.engine.reset_caches(encoder=True)
    instance.driver.wake()
    return answering.empty()


async def drain(instance: Instance, answering: Answering) -> web.StreamResponse:
    """Take no more requests; those under way finish."""
    instance.draining, instance.drained_by_master = True, False
    return answering.json({"in_flight": instance.in_flight})


async def undrain(instance: Instance, answering: Answering) -> web.StreamResponse:
    """Take requests again, unless a master has drained the worker."""
    instance.undrain()
    return answering.json({"in_flight": instance.in_flight})


async def show_faults(instance: Instance, answering: Answering) -> web.StreamResponse:
    return answering.json({"faults": instance.faults.rules, "drawn": instance.faults.drawn})


async def add_faults(instance: Instance, answering: Answering) -> web.StreamResponse:
    """`POST /faults`: a rule or a list of rules, beside those there are."""
    rules = parse_faults(answering.body)
    instance.faults.rules += rules
    instance.begin(rules, answering.refuse)
    return await show_faults(instance, answering)


async def clear_faults(instance: Instance, answering: Answering) -> web.StreamResponse:
    """`DELETE /faults`: everything is right again."""
    instance.faults.rules.clear()
    instance.calm()
    return await show_faults(instance, answering)


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
