"""The proxy's parts put together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from protocol.fleet_key import NO_KEY, FleetKey
from proxy.admission import Admission, InFlight, QueueLimits
from proxy.config import ProxyConfig
from proxy.dispatch import Dispatch, Retrying
from proxy.fleet.dns import DnsFollower, names_of
from proxy.fleet.fleet import Fleet
from proxy.fleet.fleet_log import MistakeLog, StateLog
from proxy.fleet.fleet_watcher import FleetWatcher
from proxy.fleet.from_flags import make_fleet
from proxy.fleet.own_model import OwnModel, OwnModels
from proxy.fleet.probing import probe, probe_first
from proxy.gateway import Gateway
from proxy.metrics import ProxyMetrics
from proxy.placement.by_master import MasterPlanner
from proxy.placement.master_client import MasterClient, Reporter
from proxy.placement.own_view import OwnView, Room
from proxy.placement.planner import Planner
from proxy.tokens.encode_stage import EncodeStage
from proxy.tokens.pipeline import Pipeline
from proxy.tokens.stages import TokensStages
from proxy.tokens.worker_calls import StageTimes, WorkerCalls
from proxy.upstream.client import UpstreamClient
from proxy.upstream.pools import ConnectionPools
from services.frontend.models import Models
from services.frontend.render import Frontend
from services.http.tasks import supervised

logger = logging.getLogger(__name__)
Work = Callable[[], Coroutine[Any, Any, Any]]


def make_gateway(
    config: ProxyConfig,
    models: Models | None,
    client: UpstreamClient,
    masters: UpstreamClient,
    key: FleetKey = NO_KEY,
) -> Gateway:
    """Everything a proxy consists of; the caller owns `client`, that to `masters`, `models`, and
    the gateway's `pools`. `key`: what workers know this proxy by."""
    pools = models is not None and any(one.info.pooler is not None for one in models.all)
    fleet = make_fleet(config, pools=pools, own=own_models(config, models))
    fleet.subscribe(MistakeLog(fleet).look)
    fleet.subscribe(StateLog(fleet).look)
    if models is not None:
        fleet.subscribe(partial(_tell_adapters, fleet, models))
    master: MasterClient | None = None
    if config.master_url:
        master = MasterClient(config.urls_of_masters(), masters)
    metrics = ProxyMetrics(fleet, master, _shown_names(models) if config.vllm_metrics else None)
    planner: Planner = (alone := make_own_view(config, fleet, metrics))
    first: dict[str, Work] = {"probing": lambda: probe_first(fleet, client)}
    beside: dict[str, Work] = {"probing": lambda: probe(fleet, client, config.probe_interval)}
    if dns_names := names_of(config):
        dns = DnsFollower(fleet, dns_names)
        # Who is there comes before how they are: looked up, or told by a master, then probed.
        first = {"looking up workers": dns.once, **first}
        beside["looking up workers"] = lambda: dns.run(config.dns_interval)
    if master is not None:
        watcher, reporter = FleetWatcher(master, fleet, served_names(models)), Reporter(master)
        planner = MasterPlanner(fleet, master, watcher, reporter, alone, metrics)
        # Without a wait: the master answers with what it knows, and the start is not held up.
        first = {"following the master": lambda: watcher.once(0.0), **first}
        beside |= {"following the master": watcher.run, "reporting to the master": reporter.run}
    return make_core(
        config, fleet, client, metrics, planner, models, lambda: running(first, beside), key
    )


def _tell_adapters(fleet: Fleet, models: Models) -> None:
    """Clients may name the adapters that workers have, but for the model's own names."""
    for frontend in models.all:
        frontend.served.adapters = {
            name: revision
            for name, revision in fleet.models.adapters_with(frontend.name).items()
            if revision and name not in frontend.config.names
        }


def own_models(config: ProxyConfig, models: Models | None) -> OwnModels:
    """What the flags say that the workers serve."""
    if models is None:
        return OwnModels(OwnModel(config.served_names))
    return OwnModels(*map(_own_model, models.all))


def _own_model(frontend: Frontend) -> OwnModel:
    info = frontend.info
    return OwnModel(frontend.config.names, info.name, info.revision, frontend.tokenizer.digest)


def served_names(models: Models | None) -> tuple[str, ...]:
    """Names of this proxy's only model, none if it takes any, or has several (`RenderedModels`)."""
    return () if models is None or models.several else models.first.config.names


def _shown_names(models: Models | None) -> str:
    """What metrics under vLLM's names, which count all requests together, call the model."""
    return "" if models is None else ",".join(frontend.name for frontend in models.all)


def make_core(
    config: ProxyConfig,
    fleet: Fleet,
    client: UpstreamClient,
    metrics: ProxyMetrics,
    planner: Planner,
    models: Models | None = None,
    beside: Callable[[], contextlib.AbstractAsyncContextManager[None]] = contextlib.nullcontext,
    key: FleetKey = NO_KEY,
) -> Gateway:
    """A gateway around a fleet and a planner; its `pools` are the caller's to close."""
    in_flight = InFlight(config.max_in_flight)
    metrics.watch_in_flight(lambda: in_flight.count)
    retrying = Retrying(config.max_retries, config.retry_backoff, config.failover_wait)
    dispatch = Dispatch(fleet, metrics, retrying, planner)
    times = StageTimes(config.prefill_timeout, config.first_token_timeout, config.stall_timeout)
    encode_stage = EncodeStage(dispatch, client, config.encode_timeout, config.encode_patience)
    stages = TokensStages(WorkerCalls(client, dispatch, times), encode_stage, planner)
    pipeline = Pipeline(stages, planner, dispatch, config.request_timeout)
    pools = _pools(config, fleet, metrics, key)
    return Gateway(
        config, models, fleet, client, pools, metrics, in_flight, planner, dispatch, pipeline,
        beside,
    )  # fmt: skip


def _pools(
    config: ProxyConfig, fleet: Fleet, metrics: ProxyMetrics, key: FleetKey
) -> ConnectionPools:
    pools = ConnectionPools(
        lambda: (instance.url for instance in fleet.asked()),
        config.connect_timeout,
        config.encode_at_once,
        metrics.traffic,
        key,
        config.client_context(),
    )
    fleet.subscribe(lambda: pools.give_up(fleet.asked()))
    return pools


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
    # Not fatal: workers need not be up yet, and the loops beside ask again.
    except Exception:
        logger.exception("%s has failed", name)


def make_own_view(config: ProxyConfig, fleet: Fleet, metrics: ProxyMetrics) -> OwnView:
    """What plans without a master."""
    limits = QueueLimits(
        config.max_queue, config.max_queue_wait, config.queue_timeout, config.tenant_share
    )
    room = Room(fleet, config.max_per_worker)
    admission = Admission(room.requests, limits, at_once=room.at_once)

    def count() -> None:
        room.count()
        admission.resize(room.requests, room.at_once, none_up=room.none_up)

    metrics.watch_queue(lambda: admission.waiting)
    fleet.subscribe(count)
    return OwnView(fleet, admission)
