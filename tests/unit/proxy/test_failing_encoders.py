"""A master hears which encoders fail, and places no picture on one that goes on to."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import msgspec
import pytest
from aiohttp import web

from protocol.errors import InternalError, InvalidRequest, TriptychError
from protocol.generate import decode_encode
from protocol.generate_answers import EncodeAnswer
from protocol.types import EncodeOutput, GenerateRequest, MMItem
from proxy.assembly import make_core, make_own_view
from proxy.fleet.worker import Instance
from services.master.config import MasterConfig
from tests.support.live_masters import running
from tests.support.live_placing import Placing
from tests.support.relay_failures import saying
from tests.support.relay_workers import data_url, pictures, relaying
from tests.support.scripted_workers import Worker, asking, before, gather, plainly
from tests.support.waiting import eventually

MOST = 5  # --breaker-failures of a master, if it is not given
DIALECTS = ("tokens", "openai")
# By what it has measured, chance would say which encoder is asked how often.
IN_TURN = MasterConfig(policy="round_robin")


@dataclass
class Site:
    """`ask` sends a picture of this name, and gives whether the request was answered; `encoders`
    are the proxy's own."""

    placing: Placing
    ask: Callable[[str], Awaitable[bool]]
    encoders: list[Instance]

    async def asked(self, name: str, times: int = 1, *, probed: bool = True) -> bool:
        """The same picture so many times at once; then the master has heard of all ends. `probed`:
        all encoders were found well before."""
        for encoder in self.encoders:
            encoder.suspect = encoder.suspect and not probed
        answered = await asyncio.gather(*(self.ask(name) for _ in range(times)))
        await self.placing.over()
        return all(answered)

    async def fail_once(self, times: int = 1) -> None:
        """Send new pictures, each so many times at once, until one fails at the first encoder."""
        for number in itertools.count(1000):
            assert number < 1060
            assert await self.asked(str(number), times)
            if self.placing.failures():
                return


@asynccontextmanager
async def rendering(errors: Sequence[TriptychError | None]) -> AsyncIterator[Site]:
    """A proxy of the dialect tokens. Each encoder answers with its error, or well."""
    made: set[str] = set()

    def encoder(error: TriptychError | None) -> Worker:
        async def encode(body: bytes) -> bytes | web.Response:
            if error is not None:
                return web.json_response(error.to_openai(), status=error.status)
            wanted = decode_encode(body)
            made.update(item.mm_hash for item in wanted.items)
            outputs = [EncodeOutput(wanted.request_id, item.mm_hash, {}) for item in wanted.items]
            return msgspec.json.encode(EncodeAnswer(outputs))

        return Worker(encode=encode)

    async def waiting(request: GenerateRequest) -> AsyncIterator[bytes]:
        await eventually(lambda: request.mm_items[0].mm_hash in made)
        async for data in plainly(request):
            yield data

    encoders = [encoder(error) for error in errors]
    flags = ("--breaker-failures", "100", "--max-retries", "1")
    async with (
        running(config=IN_TURN) as ((master,), link, _),
        before(encode=encoders, decode=[Worker(waiting)], flags=flags) as stack,
    ):
        placing, gateway = Placing(master, link, "tokens"), stack.gateway
        planner = placing.plan(make_own_view(gateway.config, stack.fleet, gateway.metrics))
        core = make_core(gateway.config, stack.fleet, gateway.client, gateway.metrics, planner)

        ids = itertools.count()

        async def ask(name: str) -> bool:
            item = f"{int(name):064x}"
            request = asking(f"r{next(ids)}", mm_items=[MMItem(item, "image", 0, 1)])
            found: dict[int, list[int]] = {}
            with contextlib.suppress(TriptychError):
                async for outputs in core.pipeline.run(request, {item: b"picture"}):
                    gather(outputs, found)
                return True
            return False

        async with placing.told():
            yield Site(placing, ask, stack.fleet.encode)


@asynccontextmanager
async def relayed(errors: Sequence[TriptychError | None]) -> AsyncIterator[Site]:
    """As `rendering`, of the dialect openai."""
    async with running(config=IN_TURN) as ((master,), link, _):
        # Not by the dialect that they speak: the master would learn that the other one is fast.
        placing = Placing(master, link, "tokens")
        topology = "E" * len(errors) + "D"
        async with (
            relaying(topology, "--max-retries", "1", planning=placing.plan) as relay,
            placing.told(),
        ):
            for worker, error in zip(relay.workers["encode"], errors, strict=True):
                if error is not None:
                    said = saying(msgspec.json.encode(error.to_openai()), status=error.status)
                    worker.script = [said] * 99

            async def ask(name: str) -> bool:
                status, _ = await relay.post(pictures(data_url(name)))
                return status == 200

            yield Site(placing, ask, relay.gateway.fleet.encode)


def site(dialect: str, *errors: TriptychError | None) -> AbstractAsyncContextManager[Site]:
    return (rendering if dialect == "tokens" else relayed)(errors)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_an_encoder_that_fails_each_picture_gets_no_more_of_them(dialect: str) -> None:
    async with site(dialect, InternalError("broken"), None) as found:
        placing = found.placing
        number = 0
        while placing.failures().get("e0", 0) < MOST:
            number += 1
            assert number < 60, placing.failures()
            assert await found.asked(str(number)), "the other one encodes it"
        assert placing.failures() == {"e0": MOST}
        before = len(placing.planner.plans)
        for more in range(8):
            assert await found.asked(str(100 + more))
        assert placing.encoders(placing.planner.plans[before:]) == ["e1"]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("error", [InvalidRequest("no picture"), InternalError("broken")])
async def test_what_is_the_pictures_own_fault_is_charged_to_no_encoder(
    dialect: str, error: TriptychError
) -> None:
    """It is refused, or fails in the same way at another encoder."""
    async with site(dialect, error, error) as found:
        for number in range(3):
            assert not await found.asked(str(number))
        assert found.placing.failures() == {}


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_failure_counts_once_for_all_who_wait_for_the_picture(dialect: str) -> None:
    async with site(dialect, InternalError("broken"), None) as found:
        await found.fail_once(times=4)
        assert found.placing.failures() == {"e0": 1}


async def test_what_another_encoder_does_is_no_success_of_the_one_that_was_planned() -> None:
    """The proxy passes over one that has failed until a probe finds it well, which the master does
    not know."""
    async with site("tokens", InternalError("broken"), None) as found:
        await found.fail_once()
        planner, before = found.placing.planner, len(found.placing.planner.plans)
        for number in range(12):
            assert await found.asked(str(number), probed=False)
        assert "e0" in found.placing.encoders(planner.plans[before:])
        assert found.placing.failures() == {"e0": 1}
