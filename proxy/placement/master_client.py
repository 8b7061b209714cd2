"""The masters: one is asked, the next one if it fails, and told how requests went."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from protocol.errors import ConfigError, InternalError, TriptychError, UpstreamError
from protocol.generate import MSGPACK
from protocol.placement import FINISHED_PATH, Finished, FinishedReports
from protocol.registry import SUSPECT_PATH, LeaseAnswer, Suspected
from proxy.upstream.client import UpstreamClient, raise_for_status
from proxy.upstream.failures import ProxyExhausted
from proxy.upstream.patience import Patience

logger = logging.getLogger(__name__)
_T = TypeVar("_T")
_HEADERS = {"content-type": MSGPACK, "accept": MSGPACK}
_NO_TRACE: Mapping[str, str] = MappingProxyType({})
_SILENT_S = 7.0  # more than the watcher of the fleet waits for an answer
_UNHEARD_S = 2.0  # for which a master that is not present is waited for
_TOGETHER_S = 0.01  # reports that come within this go in one call
_TELL_S = 2.0  # what a master does not take in time lapses there
_AGAIN_S = 1.0  # between two tries to tell what no master has taken
_MOST_REPORTS = 4096


class MasterAway(UpstreamError):
    """No master answers."""

    code = "master_away"


class MasterClient:
    """`present` as long as the current master has answered lately; `failovers` counts those that
    were and failed, with another to ask. Connections are kept by the client."""

    def __init__(self, urls: Sequence[str], client: UpstreamClient) -> None:
        if not urls:
            raise ConfigError("--master-url: no URL is given")
        self._urls = list(dict.fromkeys(urls))
        self._client = client
        self._heard = -math.inf
        self.failovers = 0

    @property
    def url(self) -> str:
        """The master that is asked."""
        return self._urls[0]

    @property
    def present(self) -> bool:
        return time.monotonic() - self._heard < _SILENT_S

    def heard(self, url: str) -> None:
        """`url` has just answered."""
        if url != self.url:
            return
        if not self.present:
            logger.info("master %s answers", self.url)
        self._heard = time.monotonic()

    def failed(self, url: str, error: TriptychError) -> None:
        """`url` has not answered; another master is asked from here on, if there is one."""
        if url != self.url:
            return
        if self.present:
            logger.warning("master %s failed: %s", url, error.message)
            self.failovers += len(self._urls) > 1
        self._heard = -math.inf
        # Last in the row: it is asked again once all others have failed too.
        self._urls.append(self._urls.pop(0))
        # Calls that wait there end at once, and are made to the next master.
        self._client.messages.give_up(url)

    async def get(self, path: str, kind: type[_T], timeout_s: float) -> _T:
        """Of the current master; raises what it says, or `MasterAway`."""
        url = self.url
        try:
            answer = await self._client.get(url + path, Patience.of(timeout_s), _HEADERS)
            found = _from_msgpack(answer, kind)
        except ProxyExhausted as error:  # the master was not asked
            raise MasterAway(f"master {url}: {error.message}") from None
        except TriptychError as error:
            self.failed(url, error)
            raise MasterAway(f"master {url}: {error.message}") from None
        self.heard(url)
        return found

    async def post(
        self,
        path: str,
        body: Any,
        kind: type[_T],
        deadline: float,
        trace: Mapping[str, str] = _NO_TRACE,
    ) -> _T:
        """As `get`; of every other master, each once, if one has gone. `trace`: headers that tell
        of the trace of the request that it is for."""
        data = msgspec.msgpack.encode(body)
        asked: set[str] = set()
        # `failed` turns the list meanwhile: who was asked is noted apart.
        while url := next((url for url in self._urls if url not in asked), None):
            asked.add(url)
            try:
                answer = await self._posted(url, path, data, deadline, trace)
                found = _from_msgpack(answer, kind)
            except TriptychError as error:
                if not _is_broken(error):
                    raise
                self.failed(url, error)
            else:
                self.heard(url)
                return found
        raise MasterAway("no master answers")

    async def _posted(
        self, url: str, path: str, data: bytes, deadline: float, trace: Mapping[str, str]
    ) -> bytes:
        """A master that is present is waited for until `failed` says otherwise; whether another one
        has come to be, it has to be looked at again and again."""
        if url != self.url or not self.present:
            patience = self._patience(url, deadline)
            return await self._client.post(url + path, data, {**_HEADERS, **trace}, patience)
        answer = await self._client.messages.post(url, path, data, deadline, trace)
        after = answer.retry_after.decode("latin-1")
        raise_for_status(url + path, answer.status, answer.body, after, called=True)
        return answer.body

    def _patience(self, url: str, deadline: float) -> Patience:
        """A master may take its time to answer as long as it is `present`, and a little to become
        so: the watcher of the fleet hears of it soon."""
        unheard_until = time.monotonic() + _UNHEARD_S

        def alive() -> bool:
            return (url == self.url and self.present) or time.monotonic() < unheard_until

        return Patience(deadline, alive=alive)


def _is_broken(error: TriptychError) -> bool:
    """Whether it is the master's own fault, as opposed to what it says of the request."""
    return isinstance(error, UpstreamError) or error.status == InternalError.status


def _from_msgpack(answer: bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.msgpack.decode(answer, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        what = f"the answer is not a valid {kind.__name__} in msgpack: {error}"
        raise UpstreamError(what) from None


class Reporter:
    """Reports stages that have ended, in batches, and of workers that take no requests. What cannot
    be told lapses at the master, but for ends of requests, which would keep their tenants' shares
    until then: these are told later. At most `_MOST_REPORTS` reports wait; the oldest are
    dropped."""

    def __init__(self, client: MasterClient) -> None:
        self._client = client
        self._waiting: deque[Finished] = deque(maxlen=_MOST_REPORTS)
        self._telling: list[Finished] = []
        self._suspects: dict[str, str] = {}
        self._some = asyncio.Event()

    def add(self, report: Finished) -> None:
        self._waiting.append(report)
        self._some.set()

    def suspect(self, instance_id: str, generation: str) -> None:
        """This worker takes no requests."""
        self._suspects[instance_id] = generation
        self._some.set()

    async def run(self) -> None:
        """Until cancelled; what is left is told then, as the proxy ends."""
        try:
            while True:
                await self._some.wait()
                await asyncio.sleep(_TOGETHER_S)
                if not await self._told():
                    await asyncio.sleep(_AGAIN_S)
        finally:
            # A master may have heard of those under way: only their ends are told again, since a
            # failure would count twice.
            self._keep_ends(self._telling)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TELL_S):
                    await self._told()

    async def _told(self) -> bool:
        """Tell what waits; whether a master has taken it."""
        # Before the reports are taken: one that comes while these are told sets it again.
        self._some.clear()
        suspects, self._suspects = self._suspects, {}
        self._telling = list(self._waiting)
        self._waiting.clear()
        told = not self._telling
        if self._client.present:
            for name, generation in suspects.items():
                await self._tell(SUSPECT_PATH, Suspected(name, generation))
            if self._telling:
                told = await self._tell(FINISHED_PATH, FinishedReports(self._telling))
        reports, self._telling = self._telling, []
        if not told:
            self._keep_ends(reports)
        return told

    def _keep_ends(self, reports: Sequence[Finished]) -> None:
        """To be told again. Of how the workers did only that it is not known: it would be old."""
        ends = [Finished(one.request_id, aborted=True) for one in reports if one.stage == "request"]
        # Not by `extendleft`: at the bound it would drop the newest.
        self._waiting = deque([*ends, *self._waiting], _MOST_REPORTS)
        if self._waiting:
            self._some.set()

    async def _tell(self, path: str, body: Suspected | FinishedReports) -> bool:
        """Whether a master has taken it."""
        try:
            await self._client.post(path, body, LeaseAnswer, time.monotonic() + _TELL_S)
        except TriptychError:
            return False
        return True
