"""Mock workers tell the master that they are there, how busy they are, and when they leave."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Sequence

import aiohttp
import msgspec

from protocol.registry import (
    DEREGISTER_PATH,
    HEARTBEAT_PATH,
    REGISTER_PATH,
    Heartbeat,
    InstanceName,
    LeaseAnswer,
)
from services.mock.instance import Instance
from services.mock.reports import load_of

logger = logging.getLogger("mock")
_TIMEOUT_S = 2.0
_JSON = {"content-type": "application/json"}
_answers = msgspec.json.Decoder(LeaseAnswer)


class Registration:
    """Keeps the workers of this process registered with every master."""

    def __init__(
        self, instances: Sequence[Instance], masters: Sequence[str], interval_s: float
    ) -> None:
        self._instances = instances
        self._masters = masters
        self._interval_s = interval_s
        self._tasks: list[asyncio.Task[None]] = []
        self._session: aiohttp.ClientSession | None = None
        self._warned: set[str] = set()

    def start(self) -> None:
        """One loop for each worker and master."""
        if not self._masters:
            return
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=32),
            timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S),
        )
        self._tasks = [
            asyncio.create_task(self._keep(instance, master))
            for instance in self._instances
            for master in self._masters
        ]

    async def _keep(self, instance: Instance, master: str) -> None:
        known = False
        while True:
            if known:
                known = await self._beat(instance, master)
            if not known:
                known = await self._post(master + REGISTER_PATH, instance.info())
                if known:
                    known = await self._beat(instance, master)
            spread = random.uniform(0.8, 1.2)
            await asyncio.sleep(self._interval_s * spread)

    async def _beat(self, instance: Instance, master: str) -> bool:
        settings = instance.settings
        beat = Heartbeat(
            settings.instance_id, settings.generation, load_of(instance.engine), instance.draining
        )
        return await self._post(master + HEARTBEAT_PATH, beat)

    async def _post(self, url: str, body: msgspec.Struct) -> bool:
        """Whether the master knows the worker now."""
        assert self._session is not None
        data = msgspec.json.encode(body)
        try:
            async with self._session.post(url, data=data, headers=_JSON) as response:
                content = await response.read()
                if response.status == 200:
                    return _answers.decode(content).known
                self._warn(url, f"HTTP {response.status} {content[:200]!r}")
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as error:
            self._warn(url, f"{type(error).__name__}: {error}")
        return False

    def _warn(self, url: str, problem: str) -> None:
        if problem not in self._warned:
            self._warned.add(problem)
            logger.warning("%s: %s", url, problem)

    async def close(self) -> None:
        """Leave every master."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._session is None:
            return
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self._session.close)
            leaving = (
                self._post(master + DEREGISTER_PATH, _name(instance))
                for instance in self._instances
                for master in self._masters
            )
            await asyncio.gather(*leaving)


def _name(instance: Instance) -> InstanceName:
    return InstanceName(instance.settings.instance_id, instance.settings.generation)
