"""Workers found by DNS: `dns+http://encode.svc:8000` stands for all addresses of a name, which is
looked up again and again. So are scaled services of compose and headless ones of Kubernetes."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from protocol.logs import worker_line
from protocol.types import Role
from proxy.config import ProxyConfig
from proxy.fleet.fleet import Fleet
from proxy.fleet.worker import Instance
from proxy.worker_options import split_urls

logger = logging.getLogger(__name__)
_LOOKUP_S = 5.0
# A resolver may leave addresses out of one answer; a worker that is gone misses in the next too.
_MISSES = 2


class DnsName(NamedTuple):
    """A name whose addresses are the workers of one role."""

    role: Role
    host: str
    port: int


Lookup = Callable[[str, int], Awaitable[set[str]]]


def names_of(config: ProxyConfig) -> list[DnsName]:
    """The names in the lists of workers; `ConfigError` if one is none."""
    lists: tuple[tuple[Role, str], ...] = (
        ("encode", config.encode_servers_urls),
        ("prefill", config.prefill_servers_urls),
        ("decode", config.decode_servers_urls),
    )
    return [
        DnsName(role, *name)
        for role, text in lists
        for name in split_urls(f"--{role}-servers-urls", text)[1]
    ]


async def look_up(host: str, port: int) -> set[str]:
    """The URLs of all addresses of a name; `OSError` if there is no answer."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(_LOOKUP_S):
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    hosts = {str(address[0]) for *_, address in found}
    return {f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}" for host in hosts}


@dataclass
class DnsFollower:
    """Keeps a fleet's workers those that DNS names. What DNS does not answer changes nothing."""

    fleet: Fleet
    names: Sequence[DnsName]
    lookup: Lookup = look_up
    _misses: dict[Instance, int] = field(default_factory=dict)  # of workers it has added
    _failing: set[DnsName] = field(default_factory=set)

    async def run(self, interval_s: float) -> None:
        """Look up again and again, until cancelled."""
        while True:
            # The pause first: `once` has been called at the start, before the first probes.
            await asyncio.sleep(interval_s)
            await self.once()

    async def once(self) -> None:
        """Look every name up; workers that are new get requests once a probe finds them well."""
        answers = await asyncio.gather(*(self._answer(name) for name in self.names))
        found = {
            (name.role, url)
            for name, urls in zip(self.names, answers, strict=True)
            for url in urls or ()
        }
        # Of a role with a name unanswered it is not known who is gone.
        unknown = {n.role for n, urls in zip(self.names, answers, strict=True) if urls is None}
        if self._add(found) + self._remove(found, unknown):
            self.fleet.news()

    async def _answer(self, name: DnsName) -> set[str] | None:
        """None if there is none; said once until there is one again."""
        try:
            urls = await self.lookup(name.host, name.port)
        # A lookup that took too long is an `OSError` as well: `TimeoutError` is one.
        except (OSError, UnicodeError) as error:
            if name not in self._failing:
                logger.warning("%s cannot be looked up: %s", name.host, error or "no answer")
                self._failing.add(name)
            return None
        self._failing.discard(name)
        return urls

    def _add(self, found: set[tuple[Role, str]]) -> int:
        new = [(role, url) for role, url in sorted(found) if self.fleet.find(role, url) is None]
        for role, url in new:
            instance = self.fleet.add(url, role)
            # Listed: a master that has not heard of it must not remove it.
            instance.listed, instance.up = True, False
            self._misses[instance] = 0
            self.fleet.doubt(instance)
            worker_line(logger, logging.INFO, "joined", role, url, "DNS names it")
        return len(new)

    def _remove(self, found: set[tuple[Role, str]], unknown: set[Role]) -> int:
        for instance in self._misses:
            known = instance.role in unknown or (instance.role, instance.url) in found
            self._misses[instance] = 0 if known else self._misses[instance] + 1
        # Only workers that this has added can go: those that flags or operators gave stay.
        gone = [instance for instance, misses in self._misses.items() if misses >= _MISSES]
        for instance in gone:
            del self._misses[instance]
            self.fleet.remove(instance, given_up=instance.draining)
            cause = "DNS names it no longer"
            worker_line(logger, logging.INFO, "left", instance.role, instance.url, cause)
        return len(gone)
