"""The proxy's parts put together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from typing import Any

from protocol.errors import ConfigError
from proxy.admission import Admission, Limits
from proxy.config import ProxyConfig
from proxy.fleet.circuit_breaker import Breaker
from proxy.fleet.fleet import Fleet
from proxy.fleet.fleet_watcher import FleetWatcher
from proxy.fleet.probing import probe, probe_first
from proxy.gateway import Gateway
from proxy.metrics import ProxyMetrics
from proxy.placement.by_master import MasterPlanner, ModelNames
from proxy.placement.master_client import MasterClient
from proxy.placement.own_view import OwnView, Planner, room_of
from proxy.placement.reporter import Reporter
from proxy.tokens.encode_stage import EncodeStage
from proxy.tokens.pipeline import Pipeline, Retrying
from proxy.tokens.stages import Stages
from proxy.tokens.worker_calls import StageTimes, WorkerCalls
from proxy.upstream.client import UpstreamClient
from services.frontend.render import Frontend
from services.http.background import supervised

logger = logging.getLogger(__name__)
Work = Callable[[], Coroutine[Any, Any, Any]]


def make_gateway(
    config: ProxyConfig, frontend: Frontend | None, client: UpstreamClient, masters: UpstreamClient
) -> Gateway:
    """Everything a proxy consists of; the caller owns `client`, that to `masters`, `frontend`."""
    fleet = make_fleet(config)
    metrics = ProxyMetrics(fleet)
    alone = make_static(config, fleet, metrics)
    placing: Planner = alone
    first: dict[str, Work] = {"probing": lambda: probe_first(fleet, client)}
    beside: dict[str, Work] = {"probing": lambda: probe(fleet, client, config.probe_interval)}
    if config.master_url:
        link = MasterClient(config.urls_of_masters(), masters)
        names = ModelNames.of(frontend)
        following, reports = FleetWatcher(link, fleet, names.served), Reporter(link)
        placing = MasterPlanner(fleet, link, following, reports, alone, metrics, names)
        metrics.watch_master(lambda: link.present, lambda: link.failovers)
        first = {"following the master": lambda: following.once(0.0), **first}
        beside |= {"following the master": following.run, "reporting to the master": reports.run}
    pipeline = make_pipeline(config, fleet, client, metrics, placing)
    if frontend is not None:
        pipeline.vocab_size = frontend.info.vocab_size
    return Gateway(
        config, frontend, fleet, client, pipeline, metrics, lambda: running(first, beside)
    )


@contextlib.asynccontextmanager
async def running(
    first: Mapping[str, Work], beside: Mapping[str, Work]
) -> AsyncGenerator[None, None]:
    """`first` one after the other, then `beside` at once, as long as the context lasts. What fails
    is logged by its name; what goes on beside is begun again after a pause."""
    for name, work in first.items():
        await _tried(name, work)
    tasks = [asyncio.create_task(supervised(name, work)) for name, work in beside.items()]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _tried(name: str, work: Work) -> None:
    try:
        await work()
    except Exception:
        logger.exception("%s has failed", name)


def make_static(config: ProxyConfig, fleet: Fleet, metrics: ProxyMetrics) -> OwnView:
    limits = Limits(config.max_queue, config.max_queue_wait, config.queue_timeout)
    admission = Admission(lambda: room_of(fleet, config.max_per_worker), limits)
    metrics.watch_queue(lambda: admission.waiting)
    fleet.changed = admission.pump
    return OwnView(fleet, admission)


def make_pipeline(
    config: ProxyConfig,
    fleet: Fleet,
    client: UpstreamClient,
    metrics: ProxyMetrics,
    placing: Planner | None = None,
) -> Pipeline:
    """By the proxy's own view unless `placing` is given."""
    placing = placing or make_static(config, fleet, metrics)
    encode_stage = EncodeStage(fleet, client, config.encode_timeout)
    times = StageTimes(config.prefill_timeout, config.first_token_timeout, config.stall_timeout)
    stages = Stages(WorkerCalls(client, metrics, times), encode_stage, placing)
    retrying = Retrying(config.max_retries, config.retry_backoff, config.failover_wait)
    return Pipeline(stages, placing, metrics, config.request_timeout, retrying)


def make_fleet(config: ProxyConfig) -> Fleet:
    """`ConfigError` if nobody decodes, and nobody could tell of anybody."""
    fleet = Fleet.from_urls(
        config.encode_servers_urls,
        config.prefill_servers_urls,
        config.decode_servers_urls,
        lambda: Breaker(config.breaker_failures, config.breaker_cooldown),
    )
    fleet.force_dialect(config.dialect)
    if not fleet.decode and not config.master_url and not config.admin_api_key:
        raise ConfigError(
            "--decode-servers-urls: at least one worker is needed, or --master-url, or an "
            "--admin-api-key to add one with"
        )
    return fleet
