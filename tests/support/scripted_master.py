"""A master that answers as a test says, and a pipeline that asks it, before scripted workers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec
from aiohttp import web

from protocol.errors import (
    InternalError,
    PayloadTooLarge,
    TriptychError,
    Unauthorized,
    error_info,
)
from protocol.placement import (
    FINISHED_PATH,
    SCHEDULES_PATH,
    Finished,
    FinishedReports,
    ItemPlacement,
    Placement,
    Scheduled,
    ScheduleRequest,
    ScheduleRequests,
    ScheduleResult,
    Target,
)
from protocol.registry import SUSPECT_PATH, InstanceRole, LeaseAnswer
from protocol.types import GenerateRequest
from proxy.assembly import make_core, make_own_view
from proxy.fleet.fleet_watcher import FleetWatcher
from proxy.fleet.own_model import OwnModels
from proxy.placement.by_master import MasterPlanner
from proxy.placement.master_client import MasterClient, Reporter
from proxy.tokens.pipeline import Pipeline
from tests.support.scripted_workers import (
    Stack,
    Worker,
    before,
    gather,
)

Answer = TriptychError | str | bytes | None
_OF_THE_CALL = (InternalError, PayloadTooLarge, Unauthorized)


@dataclass
class Master:
    """Answers questions one after the other: with an error, the id of a worker to decode, these
    bytes, or (None) never; then with worker d0."""

    answers: list[Answer] = field(default_factory=list)
    asked: list[ScheduleRequest] = field(default_factory=list)
    finished: list[Finished] = field(default_factory=list)
    made_there: bool = False  # workers encode what they compute with
    held_at: str = ""  # who holds embeddings of all pictures

    async def schedules(self, request: web.Request) -> web.Response:
        """Several requests, which may be one. What it says of the call itself, or bytes, is the
        whole answer."""
        body = msgspec.msgpack.decode(await request.read(), type=ScheduleRequests)
        results = []
        for wanted in body.requests:
            answer = await self._answer(wanted)
            if isinstance(answer, bytes):
                return web.Response(body=answer)
            if isinstance(answer, _OF_THE_CALL):
                return web.json_response(answer.to_openai(), status=answer.status)
            if isinstance(answer, TriptychError):
                results.append(ScheduleResult(None, error_info(answer)))
            else:
                results.append(ScheduleResult(self._placement(wanted, str(answer))))
        return web.Response(body=msgspec.msgpack.encode(Scheduled(results)))

    async def _answer(self, wanted: ScheduleRequest) -> Answer:
        self.asked.append(wanted)
        answer = self.answers.pop(0) if self.answers else "d0"
        if answer is None:
            await asyncio.Event().wait()
        return answer

    def _placement(self, wanted: ScheduleRequest, name: str) -> Placement:
        role: InstanceRole = "pdfusion" if self.made_there else "decode"
        target = Target(name, "http://127.0.0.1:1", role)
        made = [ItemPlacement(item.mm_hash, "local") for item in wanted.items]
        if self.held_at:
            held = Target(self.held_at, "http://127.0.0.1:1", role)
            made = [ItemPlacement(item.mm_hash, "cached", held) for item in wanted.items]
        return Placement(wanted.request_id, target, encoders=made)

    async def over(self, request: web.Request) -> web.Response:
        self.finished += msgspec.msgpack.decode(await request.read(), type=FinishedReports).reports
        return web.Response(body=msgspec.msgpack.encode(LeaseAnswer()))

    async def heard(self, request: web.Request) -> web.Response:
        return web.Response(body=msgspec.msgpack.encode(LeaseAnswer()))

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_post(SCHEDULES_PATH, self.schedules)
        app.router.add_post(FINISHED_PATH, self.over)
        app.router.add_post(SUSPECT_PATH, self.heard)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield "http://{}:{}".format(*runner.addresses[0][:2])
        finally:
            await runner.cleanup()


@asynccontextmanager
async def placed_by(
    master: Master,
    *decode: Worker,
    own: OwnModels | None = None,
    encode: Sequence[Worker] = (),
) -> AsyncIterator[tuple[Stack, Pipeline]]:
    workers = before(decode=list(decode), encode=list(encode), own=own)
    async with master.serving() as url, workers as stack:
        gateway, fleet = stack.gateway, stack.fleet
        link = MasterClient([url], gateway.client)
        link.heard(url)
        following, reports = FleetWatcher(link, fleet), Reporter(link)
        for number, instance in enumerate(fleet.decode):
            instance.instance_id = f"d{number}"
            following.by_id[instance.instance_id] = instance
        alone = make_own_view(gateway.config, fleet, gateway.metrics)
        placing = MasterPlanner(fleet, link, following, reports, alone, gateway.metrics)
        telling = asyncio.create_task(reports.run())
        try:
            core = make_core(gateway.config, fleet, gateway.client, gateway.metrics, placing)
            yield stack, core.pipeline
        finally:
            telling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await telling


async def taken(
    pipeline: Pipeline, request: GenerateRequest, media: Mapping[str, bytes] = MappingProxyType({})
) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    async for outputs in pipeline.run(request, media):
        gather(outputs, found)
    return found


def over(master: Master) -> list[str]:
    return [report.request_id for report in master.finished if report.stage == "request"]
