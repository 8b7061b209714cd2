"""What a mock engine says of itself: its load for a master, gauges and counters for people."""

from __future__ import annotations

from protocol.registry import Load
from services.mock.encoding import PATCHES_PER_TOKEN
from services.mock.engine import Engine


def load_of(engine: Engine) -> Load:
    """For the master."""
    waiting, running = engine.scheduler.waiting, engine.scheduler.running
    context = sum(request.computed for request in running)
    left = sum(request.total - request.computed for request in (*waiting, *running))
    return Load(
        queued=len(waiting) + len(engine.encoding) - engine.encoding.running,
        running=len(running) + len(engine.scheduler.loading) + engine.encoding.running,
        queued_tokens=left + engine.encoding.queued_tokens,
        context_tokens=context,
        free_blocks=engine.blocks.num_free if engine.settings.generates else 0,
        total_blocks=engine.blocks.num_blocks if engine.settings.generates else 0,
        ec_bytes=engine.store.size,
        ec_capacity_bytes=engine.store.capacity,
        rates=engine.timing.rates(PATCHES_PER_TOKEN, engine.settings.row_bytes),
    )


def gauges_of(engine: Engine) -> dict[str, float]:
    """Named as the real engine's."""
    values: dict[str, float] = {}
    if engine.settings.generates:
        scheduler = engine.scheduler
        values |= {
            "num_requests_running": len(scheduler.running) + len(scheduler.loading),
            "num_requests_waiting": len(scheduler.waiting),
            "kv_cache_usage_perc": engine.blocks.usage,
            "kv_blocks_free": engine.blocks.num_free,
            "embedding_cache_bytes": engine.store.size,
        }
    if engine.settings.encodes:
        values["num_items_encoding"] = len(engine.encoding)
    return values


def counters_of(engine: Engine) -> dict[str, float]:
    """Named as the real engine's."""
    values: dict[str, float] = {}
    if engine.settings.generates:
        values |= {
            **engine.generation.counters,
            "preemptions": engine.scheduler.preemptions,
            "kv_fetched": engine.loads.fetched,
            "kv_failed": engine.loads.failures,
            "kv_expired": engine.offers.expired,
            "embedding_queries": engine.media.queries,
            "embedding_hits": engine.media.hits,
        }
    if engine.settings.encodes:
        values |= {
            "mm_encoded": engine.encoding.encoded,
            "encoder_runs": engine.encoding.runs,
            "mm_cache_queries": engine.encoding.queries,
            "mm_cache_hits": engine.encoding.hits,
            "mm_received_bytes": engine.encoding.received_bytes,
        }
    return values
