"""Workers tell masters that they are there, how busy they are, and when they leave."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import ssl
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

import aiohttp
import msgspec

from protocol.decoding import decoded
from protocol.errors import UpstreamError
from protocol.fleet_key import NO_KEY, FleetKey
from protocol.registry import (
    DEREGISTER_PATH,
    HEARTBEAT_PATH,
    REGISTER_PATH,
    Heartbeat,
    InstanceInfo,
    InstanceName,
    LeaseAnswer,
    StageRole,
)
from services.http.tasks import supervised

logger = logging.getLogger(__name__)
_TIMEOUT_S = 2.0  # of one call; each master has a loop of its own
_SHORTEST_PAUSE_S = 0.02  # however short a master's lease is
_JSON = {"content-type": "application/json"}
_UNKNOWN = LeaseAnswer(known=False)


class Member(Protocol):
    """A worker that registers. `info` but for its load, its adapters and, where it may have
    several, its role is the same all its life."""

    async def info(self) -> InstanceInfo: ...

    @property
    def adapters(self) -> Mapping[str, str]:
        """Revisions of its LoRA adapters by name; another object once they have changed."""
        ...

    @property
    def failed(self) -> bool:
        """Whether it leaves because it cannot go on."""
        ...

    async def heartbeat(self) -> Heartbeat: ...

    def drain(self) -> None:
        """A master says to take no more requests: say so in every heartbeat. Idempotent."""
        ...

    def resume(self) -> None:
        """A master says to take requests again; nothing happens if the worker drains by itself.
        Idempotent."""
        ...

    def serve(self, role: StageRole) -> None:
        """A master says which role to serve from now on, of those that it may have. Idempotent."""
        ...


class Changes:
    """Wakes those that report to masters once there is something that masters should know of at
    once."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Event] = []

    def subscribe(self) -> asyncio.Event:
        """An event that is set by every change from here on; its owner clears it."""
        event = asyncio.Event()
        self._waiting.append(event)
        return event

    def announce(self) -> None:
        for event in self._waiting:
            event.set()


class Registration:
    """Keeps the workers of this process registered with every master.

    A master that is down is tried again with every heartbeat; it never delays what others are told.
    Beats come every `interval_s`, more often if a master's lease asks for it. A worker that one
    master has drained drains: so all masters know of it, and those that start later.
    Which role it serves the first master of the list says that knows it: masters that do not know
    of each other may not agree.
    """

    def __init__(
        self,
        members: Sequence[Member],
        masters: Sequence[str],
        interval_s: float,
        changes: Changes | None = None,
        key: FleetKey = NO_KEY,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`changes` of the members are reported at once, anything else with the next beat. `key`:
        the fleet's, which masters may ask for; `tls`: how https:// URLs of masters are called."""
        self._tls = tls
        self._headers = {**_JSON, **key.headers}
        self._changes = changes or Changes()
        self._members = members
        self._masters = masters
        self._interval_s = interval_s
        self._names: dict[int, InstanceName] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._session: aiohttp.ClientSession | None = None
        self._problems: dict[str, str] = {}
        self._known: set[tuple[int, str]] = set()

    def start(self) -> None:
        """One loop for each worker and master."""
        if not self._masters:
            return
        self._session = aiohttp.ClientSession(
            # One for each loop, however many hang.
            connector=aiohttp.TCPConnector(limit=0, ssl=self._tls or True),
            timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S),
        )
        for number, member in enumerate(self._members):
            for master in self._masters:
                keep = partial(self._keep, number, member, master, self._changes.subscribe())
                told = supervised(f"registration with {master}", keep)
                self._tasks.append(asyncio.create_task(told))

    async def _keep(self, number: int, member: Member, master: str, soon: asyncio.Event) -> None:
        known = _UNKNOWN
        told: Mapping[str, str] = {}
        while True:
            if known.known:
                known = await self._beat(member, master)
            # Adapters come and go: their names route requests, so masters hear of them at once.
            if not known.known or member.adapters != told:
                # Read before `info` is awaited: what changes meanwhile is told by the next round.
                told = member.adapters
                info = await member.info()
                # Before the call: where a master takes the worker and its answer is lost, `close`
                # tells that master too.
                self._names[number] = InstanceName(info.instance_id, info.generation)
                known = await self._post(master + REGISTER_PATH, info)
                if known.known:
                    # A registration cannot say that the worker drains or that its engine stalls.
                    known = await self._beat(member, master)
            if known.draining:
                member.drain()
            elif known.resume:
                member.resume()
            self._assign(number, member, master, known)
            # Three beats to a lease: one or two may be lost.
            lease_s = known.lease_s or 3 * self._interval_s
            pause_s = max(_SHORTEST_PAUSE_S, min(self._interval_s, lease_s / 3))
            # Workers that started together do not beat together.
            pause_s *= random.uniform(0.8, 1.0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await soon.wait()
            # After the wait, before the beat: a change meanwhile is told by the next one.
            soon.clear()

    def _assign(self, number: int, member: Member, master: str, answer: LeaseAnswer) -> None:
        """Serve the role that a master says, if it is the first that knows the worker."""
        if not answer.known:
            self._known.discard((number, master))
            return
        self._known.add((number, master))
        first = next(one for one in self._masters if (number, one) in self._known)
        if answer.role is not None and first == master:
            member.serve(answer.role)

    async def _beat(self, member: Member, master: str) -> LeaseAnswer:
        """What the worker itself has said is no word of the master's: it may have taken that back
        by the time that the answer is here."""
        beat = await member.heartbeat()
        answer = await self._post(master + HEARTBEAT_PATH, beat)
        return msgspec.structs.replace(answer, draining=answer.draining and not beat.draining)

    async def _post(self, url: str, body: msgspec.Struct) -> LeaseAnswer:
        """The master's answer; one that is not understood is as good as none."""
        assert self._session is not None
        data = msgspec.json.encode(body)
        try:
            # No redirects: elsewhere is another process, which the fleet key is not for.
            call = self._session.post(url, data=data, headers=self._headers, allow_redirects=False)
            async with call as response:
                content = await response.read()
                if response.status == 200:
                    answer = decoded(content, LeaseAnswer, fail=UpstreamError)
                    self._problems.pop(url, None)
                    return answer
                self._warn(url, f"HTTP {response.status} {content[:200]!r}")
        except (aiohttp.ClientError, TimeoutError, ValueError, UpstreamError) as error:
            self._warn(url, f"{type(error).__name__}: {error}")
        # So the next message is a registration: to a master that knows the worker it is a renewal,
        # and one that has forgotten it needs that.
        return _UNKNOWN

    def _warn(self, url: str, problem: str) -> None:
        """Once for each problem, until registration succeeds."""
        if self._problems.get(url) != problem:
            self._problems[url] = problem
            logger.warning("the call to %s failed: %s", url, problem)

    async def close(self) -> None:
        """Leave every master; idempotent."""
        tasks, self._tasks = self._tasks, []
        # Before leaving: a beat that came after it would register the worker anew.
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        session, names = (
            self._session,
            [
                msgspec.structs.replace(name, failed=self._members[number].failed)
                for number, name in self._names.items()
            ],
        )
        if session is None:
            return
        leaving = (
            self._post(master + DEREGISTER_PATH, name) for name in names for master in self._masters
        )
        try:
            # `_post` raises nothing for a master that is down, and waits _TIMEOUT_S at most.
            await asyncio.gather(*leaving)
        finally:
            self._session = None
            await session.close()
