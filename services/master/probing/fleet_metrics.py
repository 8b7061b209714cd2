"""The metrics of all workers on one page, for who cannot reach the workers themselves."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from protocol.errors import UpstreamError
from protocol.fleet_key import NO_KEY, FleetKey
from services.master.config import MasterConfig
from services.master.fleet.registry import Registry
from services.master.probing.shortage import NotAsked

if TYPE_CHECKING:
    from services.master.probing.client import ProbeClient, Room

ANSWERED = b"triptych_master:worker_metrics"
_FRESH_S = 1.0  # who asks again within it gets the same page
_MAX_BYTES = 64 << 20  # of all workers together: an answer that finds no room is left out
_ABOUT = re.compile(rb"# (HELP|TYPE) ([a-zA-Z_:][a-zA-Z0-9_:]*) .*")
_SAMPLE = re.compile(rb"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?([ \t]+\S+(?:[ \t]+-?\d+)?)[ \t]*")


@dataclass(frozen=True)
class WorkerPage:
    """`text`: what a worker's /metrics said, None if it said nothing."""

    labels: Mapping[str, str]
    text: bytes | None


@dataclass
class _Family:
    """`about`: its lines of HELP and TYPE."""

    about: dict[bytes, bytes] = field(default_factory=dict)
    samples: list[bytes] = field(default_factory=list)


class FleetMetrics:
    """Asks every registered worker when it is asked."""

    def __init__(self, registry: Registry, config: MasterConfig, key: FleetKey = NO_KEY) -> None:
        self._registry = registry
        self._config = config
        self._key = key
        self._asking = asyncio.Lock()
        self._page, self._made = b"", float("-inf")

    async def page(self) -> bytes:
        """Prometheus text format; each sample has the labels `worker`, `role` and `model`."""
        async with self._asking:
            if time.monotonic() - self._made >= _FRESH_S:
                pages = await self._pages()
                # In a thread: up to _MAX_BYTES of text would hold up placements on the loop.
                self._page = await asyncio.to_thread(merged, pages)
                self._made = time.monotonic()
            return self._page

    async def _pages(self) -> list[WorkerPage]:
        from services.master.probing.client import ProbeClient, Room  # aiohttp: see there

        config, room = self._config, Room(_MAX_BYTES)
        async with ProbeClient(config.probe_timeout, self._key, config.client_context()) as client:
            reading = (_page(client, labels, room) for labels in self._workers())
            return await asyncio.gather(*reading)

    def _workers(self) -> list[dict[str, str]]:
        """Each address once, of any number of registrations."""
        found = {
            instance.info.url: {
                "worker": instance.info.url, "role": instance.info.role, "model": model
            }
            for model, fleet in self._registry.fleets.items()
            for instance in fleet.by_slot.values()
        }  # fmt: skip
        return list(found.values())


async def _page(client: ProbeClient, labels: Mapping[str, str], room: Room) -> WorkerPage:
    try:
        return WorkerPage(labels, await client.page_of(labels["worker"], room))
    # NotAsked: the master is short of files, which must not cost the page of the others.
    except (UpstreamError, NotAsked):
        return WorkerPage(labels, None)


def merged(pages: Sequence[WorkerPage]) -> bytes:
    """One page of all, family by family; a sample keeps a label that it has already."""
    families: dict[bytes, _Family] = {}
    answered = families.setdefault(ANSWERED, _Family())
    answered.about = {
        b"HELP": b"# HELP %b 1 if a worker's /metrics is on this page, else 0." % ANSWERED,
        b"TYPE": b"# TYPE %b gauge" % ANSWERED,
    }
    for page in pages:
        value = b" %d" % (page.text is not None)
        answered.samples.append(_sample(ANSWERED, b"", value, page.labels))
        _take(families, page)
    return b"\n".join(_lines(families.values())) + b"\n"


def _take(families: dict[bytes, _Family], page: WorkerPage) -> None:
    """What is neither a sample nor about one is left out."""
    # A newline begins no sample's name: one before any HELP or TYPE has a family of its own.
    family, named = _Family(), b"\n"
    for line in (page.text or b"").splitlines():
        if about := _ABOUT.fullmatch(line):
            kind, named = about.groups()
            family = families.setdefault(named, _Family())
            family.about.setdefault(kind, line)
        elif found := _SAMPLE.fullmatch(line):
            name, labels, value = found.groups()
            # Not equal: samples of a histogram have suffixes, as _bucket, that its TYPE has not.
            if not name.startswith(named):
                named, family = name, families.setdefault(name, _Family())
            family.samples.append(_sample(name, labels or b"", value, page.labels))


def _sample(name: bytes, labels: bytes, value: bytes, more: Mapping[str, str]) -> bytes:
    """With more labels, but for those that it has."""
    added = [
        b'%b="%b"' % (label.encode(), _escaped(text))
        for label, text in more.items()
        if not re.search(rb'(^|,)\s*%b="' % label.encode(), labels)
    ]
    return b"%b{%b}%b" % (name, b",".join([*added, labels] if labels else added), value)


def _escaped(value: str) -> bytes:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n").encode()


def _lines(families: Iterable[_Family]) -> Iterable[bytes]:
    for family in families:
        yield from family.about.values()
        yield from family.samples
