"""The masters of a fleet in a Redis: who is there in keys that expire, what happens on a channel.

    triptych:{namespace}:instance:{instance_id}   Joined, for a lease
    triptych:{namespace}:added:{name}             ProbedInstance as JSON, for `probe_forget`
    triptych:{namespace}:masters                  channel of messages between masters

While Redis is away masters go on with what they know; when it is back each says again which
workers speak to it. Write access to this Redis is enough to register workers: keep it private.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline, PubSub
from redis.exceptions import RedisError

from protocol.errors import InvalidRequest, TriptychError
from services.master.config import MasterConfig
from services.master.replication.messages import (
    LARGEST_MESSAGE,
    Added,
    Beat,
    Change,
    Joined,
    Kept,
    Left,
    Removed,
    decode_message,
    decode_stored,
    encode_messages,
    encode_stored,
)
from services.master.replication.outbox import Staleness
from services.master.replication.redis_io import connected, first, scan, values
from services.master.replication.replicator import Replicator

logger = logging.getLogger(__name__)
_COALESCE_S = 0.005  # what happens within it goes in one message
_DEAF_S = 3.0  # a connection that hangs raises nothing, but our own messages stay away
_FIRST_RETRY_S, _LAST_RETRY_S = 0.1, 2.0
_AT_ONCE = 500
_SAY_AGAIN_S = 30.0  # what was added by hand: its keys expire, and messages get lost


@dataclass
class RedisLink:
    """Keeps a `Replicator` connected. `news` is set when there is something to tell, `synced` once
    the keys have been read. `staleness` measures how late others hear of changes."""

    replicator: Replicator
    config: MasterConfig
    news: asyncio.Event
    staleness: Staleness
    synced: asyncio.Event = field(default_factory=asyncio.Event)
    _echoed: float = 0.0
    _said_down: bool = False

    def __post_init__(self) -> None:
        prefix = f"triptych:{self.config.redis_namespace}"
        self._channel = f"{prefix}:masters"
        self._instances = f"{prefix}:instance:"
        self._added = f"{prefix}:added:"

    async def run(self) -> None:
        """Connect again and again, until cancelled."""
        delay = _FIRST_RETRY_S
        while True:
            begun = time.monotonic()
            try:
                async with connected(self.config.redis_url) as client:
                    await self._session(client)
            except (RedisError, OSError, TimeoutError, UnicodeError) as error:
                self._down(error)  # UnicodeError: of those who resolve a host
            finally:
                self.replicator.cut_off()
            lasted = time.monotonic() - begun > _DEAF_S
            delay = _FIRST_RETRY_S if lasted else min(2 * delay, _LAST_RETRY_S)
            await asyncio.sleep(delay)

    def _up(self) -> None:
        self.replicator.connected = True
        if self._said_down:
            logger.info("Redis is reachable again")
        self._said_down = False

    def _down(self, error: Exception) -> None:
        self.replicator.counts["disconnects"] += 1
        if not self._said_down:
            self._said_down = True
            logger.warning(
                "Redis is unreachable; this master goes on alone: %s", error or type(error).__name__
            )

    async def _session(self, client: Redis) -> None:
        """Listen first, so that nothing is missed between reading the keys and listening."""
        async with client.pubsub() as channel:
            await channel.subscribe(self._channel)
            await self._tell(client)
            self._echoed = time.monotonic()
            self._up()
            await self._read_all(client)
            self._announce()
            self.replicator.counts["syncs"] += 1
            self.synced.set()
            await first(self._listen(channel), self._talk(client))

    def _announce(self) -> None:
        """Say again who speaks to us, and who was added by hand."""
        for joined in self.replicator.own(time.monotonic()):
            self.replicator.tell(joined)
        self._say_added()

    def _say_added(self) -> None:
        for added in self.replicator.added_bodies():
            self.replicator.tell(added)

    async def _listen(self, channel: PubSub) -> None:
        while True:
            message = await channel.get_message(ignore_subscribe_messages=True, timeout=_DEAF_S)
            if message is not None:
                self._heard(message["data"])
                await asyncio.sleep(0)  # others get their turn while messages queue up
            if time.monotonic() - self._echoed > _DEAF_S:
                raise TimeoutError("our own messages do not come back")

    def _heard(self, data: Any) -> None:
        try:
            if not isinstance(data, bytes) or len(data) > LARGEST_MESSAGE:
                raise InvalidRequest("the message is not bytes, or too long", code="garbage")
            sender, changes, garbage = decode_message(data)
        except InvalidRequest as error:
            self.replicator.receiver.refuse(error)
            return
        self.replicator.counts["refused_garbage"] += garbage
        if sender == self.replicator.name:
            self._echoed = time.monotonic()
            self.staleness.heard(data, self._echoed)
            return
        self.replicator.counts["heard"] += len(changes)
        self.replicator.receiver.hear_all(sender, changes, time.monotonic())

    async def _talk(self, client: Redis) -> None:
        """Write what there is to tell, and at least now and then that we are here."""
        said_added = time.monotonic()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.replicator.others.hello_s):
                    await self.news.wait()
            await asyncio.sleep(_COALESCE_S)
            self.news.clear()
            if time.monotonic() - said_added > _SAY_AGAIN_S:
                said_added = time.monotonic()
                self._say_added()
            await self._tell(client)
            await self._fetch_wanted(client)

    async def _tell(self, client: Redis) -> None:
        """All there is to tell; at least that we are here."""
        more = True
        while more:
            since = self.replicator.outbox.since
            changes = self.replicator.outbox.take(_AT_ONCE)
            more = len(changes) == _AT_ONCE
            told = 0
            try:
                for message, part in encode_messages(self.replicator.name, changes):
                    if part:
                        self.staleness.sent(message, since)
                    await self._write(client, message, part)
                    told += len(part)
            except BaseException:
                self.replicator.outbox.put_back(changes[told:])
                raise

    async def _write(self, client: Redis, message: bytes, changes: Sequence[Change]) -> None:
        """One message, and the keys that follow from it, in one round trip."""
        async with client.pipeline(transaction=False) as pipe:
            written = [self._write_key(pipe, change) for change in changes]
            pipe.publish(self._channel, message)
            answers = await pipe.execute()
        self.replicator.counts["told"] += len(changes)
        renewed = [name for name in written if name is not None]
        for name, done in zip(renewed, answers, strict=False):
            # PEXPIRE answers 0 for a key that is gone: it is written anew.
            if name and not done:
                self.replicator.repeat(name, time.monotonic())

    def _write_key(self, pipe: Pipeline, change: Change) -> str | None:
        """The worker whose lease was renewed, "" for another command; None if there is none."""
        lease_ms = int(self.config.lease * 1e3)
        match change:
            case Joined() | Kept():
                worker = change.worker if isinstance(change, Kept) else change
                name = self._instances + worker.info.instance_id
                pipe.set(name, encode_stored(worker), px=lease_ms)
            case Beat():
                pipe.pexpire(self._instances + change.beat.instance_id, lease_ms)
                return change.beat.instance_id
            case Left(lapsed=False):
                pipe.delete(self._instances + change.instance_id)
            case Added():
                pipe.set(
                    self._added + change.name, change.body, px=int(self.config.probe_forget * 1e3)
                )
            case Removed():
                pipe.delete(self._added + change.name)
            case _:
                return None
        return ""

    async def _fetch_wanted(self, client: Redis) -> None:
        """Workers that are heard of but not known."""
        wanted = sorted(self.replicator.receiver.wanted)[:_AT_ONCE]
        self.replicator.receiver.wanted.difference_update(wanted)
        if wanted:
            self.replicator.counts["fetched"] += len(wanted)
            await self._read(client, [self._instances + name for name in wanted])

    async def _read_all(self, client: Redis) -> None:
        most = 2 * self.config.max_instances
        async for names in scan(client, self._instances, most):
            await self._read(client, names)
        async for names in scan(client, self._added, most):
            for _, value, _ in await values(client, names):
                self._learn_added(value)

    async def _read(self, client: Redis, names: list[str]) -> None:
        for name, value, ttl_ms in await values(client, names):
            try:
                joined = decode_stored(value)
                if self._instances + joined.info.instance_id != name:
                    raise InvalidRequest("the entry names another worker", code="garbage")
                lease_s = min(self.config.lease, max(0, ttl_ms) / 1e3)
                self.replicator.receiver.recall(joined, time.monotonic(), lease_s)
            except TriptychError as error:
                self.replicator.receiver.refuse(error)

    def _learn_added(self, value: bytes) -> None:
        try:
            self.replicator.receiver.learn_added(value, time.monotonic(), fresh=False)
        except TriptychError as error:
            self.replicator.receiver.refuse(error)
