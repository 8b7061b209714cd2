"""A worker as a member of a fleet: what masters are told of it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from urllib.parse import urlsplit

from protocol.errors import TriptychError
from protocol.fleet_key import FleetKey
from protocol.registry import Heartbeat, InstanceInfo, InstanceRole, Load, StageRole
from services.membership.config import reachable
from services.membership.registration import Registration
from services.worker.worker import Worker

logger = logging.getLogger("worker")
_ASK_S = 0.5  # a heartbeat must not wait for the end of a long step


class WorkerMember:
    """`url` is where others reach the worker. Its load is the engine's, as of now or, while a step
    takes long, as of the last time the engine answered."""

    def __init__(self, worker: Worker, url: str) -> None:
        self._worker = worker
        self._url = url
        self._load = Load()

    async def info(self) -> InstanceInfo:
        worker, facts = self._worker, self._worker.engine.ready
        role: InstanceRole = worker.serving  # type: ignore[assignment]
        host = urlsplit(self._url).hostname or ""
        return InstanceInfo(
            instance_id=worker.instance_id,
            role=role,
            url=self._url,
            model=worker.model,
            generation=worker.instance_id[:16],
            revision=worker.frontend.info.revision,
            tokenizer=worker.frontend.tokenizer.digest,
            block_size=facts.block_size,
            max_running=worker.config.max_num_seqs,
            kv_bytes_per_token=facts.kv_bytes_per_token,
            kv_layout=facts.kv_layout,
            kv_endpoint=facts.kv_endpoint or None,
            ec_endpoint=facts.ec_endpoint or None,
            ec_compatibility=facts.ec_compatibility if worker.frontend.info.has_media else "",
            events=reachable(facts.events, host),
            encodes="encode" in worker.stages,
            roles=worker.stages,
            adapters=list(worker.frontend.served.adapters),
            adapter_revisions=worker.frontend.served.adapters,
            grpc_port=worker.grpc_port,
            load=await self._newest(),
        )

    @property
    def adapters(self) -> Mapping[str, str]:
        return self._worker.frontend.served.adapters

    @property
    def failed(self) -> bool:
        return bool(self._worker.engine.outage)

    async def heartbeat(self) -> Heartbeat:
        worker, engine = self._worker, self._worker.engine
        load = await self._newest()
        return Heartbeat(
            worker.instance_id, worker.instance_id[:16], load, worker.leaving,
            worker.drained_by_master and not worker.life.draining,
            bool(engine.stall), engine.progress, worker.stage,
        )  # fmt: skip

    def drain(self) -> None:
        if not self._worker.draining:
            self._worker.drain(by_master=True)

    def resume(self) -> None:
        self._worker.resume()

    def serve(self, role: StageRole) -> None:
        self._worker.serve(role)

    async def _newest(self) -> Load:
        with contextlib.suppress(TriptychError):
            self._load = (await self._worker.engine.statistics(timeout_s=_ASK_S)).load
        return self._load


def registration_of(
    worker: Worker, url: str, masters: Sequence[str], key: FleetKey
) -> Registration:
    """What tells `masters` of the worker, which others reach at `url`."""
    config, members = worker.config, [WorkerMember(worker, url)]
    interval_s, tls = config.heartbeat_interval, config.client_context()
    return Registration(members, masters, interval_s, worker.changes, key, tls)


@contextlib.asynccontextmanager
async def registered(worker: Worker, registration: Registration) -> AsyncGenerator[None, None]:
    """While a worker takes requests its masters know of it; before it stops they are told, and
    others have time to fetch what it keeps for them."""
    registration.start()
    telling = asyncio.create_task(_tell(worker))
    try:
        yield
    finally:
        telling.cancel()
        # As its own drain: a master's answer that is still on its way must not take it back.
        worker.draining, worker.drained_by_master = True, False
        await registration.close()
        await handed_over(worker)


async def handed_over(worker: Worker) -> None:
    """Until requests on other workers have the KV and the embeddings that were made here for them,
    as long as the worker may take to stop: else they compute them again."""

    async def kept() -> bool:
        if worker.engine.outage:
            return False  # there is no engine that could hand out anything
        try:
            statistics = await worker.engine.statistics(awaited=True, timeout_s=_ASK_S)
        # No answer in time: the engine may still keep something that others need.
        except TriptychError:
            return not worker.engine.outage
        return worker.in_flight > 0 or statistics.awaited > 0

    if not await worker.life.handed_over(kept):
        logger.warning("the worker stops before others have fetched all that it made for them")


async def _tell(worker: Worker) -> None:
    """Masters place no more on a worker that is about to stop."""
    await worker.life.begun.wait()
    worker.changes.announce()
