"""Asking workers how they are, again and again."""

from __future__ import annotations

import asyncio
import logging
import time

from protocol.errors import RequestError, TriptychError, Unavailable
from proxy.fleet.discovery import learn, learn_adapters
from proxy.fleet.fleet import Fleet
from proxy.fleet.worker import Instance
from proxy.upstream.client import UpstreamClient
from proxy.upstream.failures import ProxyExhausted, is_silence

logger = logging.getLogger(__name__)
_AGAIN_S = 0.2  # between probes of a worker that calls keep finding gone
_LONGEST_NAME = 256  # characters of a process name
_ADAPTERS_EVERY = 5  # probes


async def probe(fleet: Fleet, client: UpstreamClient, interval_s: float) -> None:
    """Ask every worker for its health, again and again, until cancelled; those that a call has
    found gone at once."""
    while True:
        await probe_once(fleet, client)
        due = time.monotonic() + interval_s
        while (left_s := due - time.monotonic()) > 0:
            if lost := await fleet.doubtful(left_s):
                await _probe_all(fleet, client, lost)
                await asyncio.sleep(min(_AGAIN_S, left_s))  # calls may find it gone again at once


async def probe_first(fleet: Fleet, client: UpstreamClient, patience_s: float = 10.0) -> None:
    """Until every worker that is there has said what it is, or for so long: one that has just come
    up can be slow to."""
    # Bounded: the port is served only after this, and one worker that never says what it is must
    # not keep the others' requests out.
    deadline = time.monotonic() + patience_s
    while await probe_once(fleet, client):
        if time.monotonic() > deadline:
            return
        await asyncio.sleep(_AGAIN_S)


async def probe_once(fleet: Fleet, client: UpstreamClient) -> bool:
    """All are probed, even if the probe of one fails. True if it would be worth it to ask again at
    once."""
    again, _ = await asyncio.gather(
        _probe_all(fleet, client, list(fleet.to_probe())), listen(fleet, client)
    )
    return again


async def listen(fleet: Fleet, client: UpstreamClient) -> None:
    """Give up workers that calls wait for, that a master knows, and that are silent."""
    quiet = fleet.quiet()
    asked = (_listen_to(fleet, client, instance) for instance in quiet)
    results = await asyncio.gather(*asked, return_exceptions=True)
    for instance, failure in zip(quiet, results, strict=True):
        if isinstance(failure, Exception):
            logger.error("the probe of %s failed", instance.url, exc_info=failure)


async def _listen_to(fleet: Fleet, client: UpstreamClient, instance: Instance) -> None:
    """Any answer will do: the calls of an ill worker end by themselves."""
    try:
        await client.get(f"{instance.url}/health")
    except TriptychError as error:
        if is_silence(error):
            await _late(fleet, client, instance)
            return
    instance.late_probes = 0


async def _probe_all(fleet: Fleet, client: UpstreamClient, asked: list[Instance]) -> bool:
    probes = (probe_one(fleet, client, instance) for instance in asked)
    results = await asyncio.gather(*probes, return_exceptions=True)
    for instance, failure in zip(asked, results, strict=True):
        if isinstance(failure, Exception):
            logger.error("the probe of %s failed", instance.url, exc_info=failure)
            instance.refused("its probe failed")
    fleet.news()
    return True in results


async def probe_one(fleet: Fleet, client: UpstreamClient, instance: Instance) -> bool:
    """A refused connection means down at once, a late answer only if it happens again and again.
    True if it is up but did not answer the protocol probe: it gets no requests until it does."""
    try:
        takes_requests = await _takes_requests(client, instance)
    except ProxyExhausted:
        return _hold(instance, instance.up)  # it was not asked: what was known of it holds
    except TriptychError as error:
        if is_silence(error):
            await _late(fleet, client, instance)
            return _hold(instance, instance.up)
        instance.refused(error.message)
        return False
    if instance.suspect and not instance.known_to_master:
        instance.restarted()
    if not instance.known and not instance.removed:
        await learn(client, instance, not fleet.forced)
        fleet.judge(instance)
    elif instance.tells_adapters:
        instance.probes += 1
        if instance.probes % _ADAPTERS_EVERY == 0:
            await learn_adapters(client, instance)
    # Before `answered`: what follows from a worker that comes up is worked out only where one does.
    before = instance.up, instance.draining
    instance.answered()
    if not takes_requests:
        instance.draining = True  # until it restarts; a master may have said so too
    held = _hold(instance, before[0])
    if before != (instance.up, instance.draining):
        fleet.news()
    return held


async def _late(fleet: Fleet, client: UpstreamClient, instance: Instance) -> None:
    was_lost = instance.lost
    instance.late_probes += 1  # before anything else: other late workers are no replacement
    cut_off = not (was_lost or await client.reaches(instance.url))
    alone = not fleet.replaceable(instance)
    instance.late(alone, cut_off)
    if not (instance.lost or alone):
        fleet.doubt(instance)  # whether it is busy or gone shows the sooner
    elif instance.lost and not was_lost:
        fleet.news()
        if cut_off:
            fleet.doubt_neighbours(instance)


def _hold(instance: Instance, was_up: bool) -> bool:
    """Send nothing to a worker of which it is not known what it speaks; whether that is so."""
    if instance.dialect is not None:
        return False
    instance.up = False
    if was_up:
        instance.cause = "it did not answer the protocol probe (--dialect names the protocol)"
    return True


async def _takes_requests(client: UpstreamClient, instance: Instance) -> bool:
    """Whether a worker that is well takes requests, which ours say; raises if it is not well."""
    takes_requests = True
    if instance.dialect == "tokens":
        try:
            name, instance.names_itself = await client.introduction(f"{instance.url}/ready")
            _notice(instance, name)
            return True
        # An `Unavailable` too, but of this process: the worker has not said that it drains.
        except ProxyExhausted:
            raise
        except Unavailable:
            takes_requests = False
        except RequestError:
            pass  # there is no such route
    await client.get(f"{instance.url}/health")
    return takes_requests


def _notice(instance: Instance, name: bytes) -> None:
    """A worker that has restarted since the last probe is asked all anew."""
    process = name[:_LONGEST_NAME].decode("latin-1")
    if instance.process and process != instance.process:
        instance.restarted()
    instance.process = process
