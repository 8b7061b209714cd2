"""The masters: one is asked, the next one if it fails."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from protocol.errors import ConfigError, TriptychError, UpstreamError
from protocol.generate import MSGPACK
from proxy.client import Patience, UpstreamClient

logger = logging.getLogger(__name__)
_T = TypeVar("_T")
_HEADERS = {"content-type": MSGPACK, "accept": MSGPACK}
_SILENT_S = 7.0


class MasterAway(UpstreamError):
    """No master answers."""

    code = "master_away"


class MasterLink:
    """`present` as long as the current master has answered lately. Connections are kept by the
    client."""

    def __init__(self, urls: Sequence[str], client: UpstreamClient) -> None:
        if not urls:
            raise ConfigError("--master-url: no URL is given")
        self._urls = list(urls)
        self._client = client
        self._heard = 0.0
        self.failovers = 0

    @property
    def url(self) -> str:
        """The master that is asked."""
        return self._urls[0]

    @property
    def present(self) -> bool:
        return time.monotonic() - self._heard < _SILENT_S

    def heard(self) -> None:
        """The current master has just answered."""
        if not self.present:
            logger.info("master %s answers", self.url)
        self._heard = time.monotonic()

    def failed(self, url: str, error: TriptychError) -> None:
        """`url` has not answered; another master is asked from here on, if there is one."""
        if url != self.url:
            return
        if self.present:
            logger.warning("master %s: %s", url, error.message)
        self._heard = 0.0
        self._urls.append(self._urls.pop(0))
        self.failovers += len(self._urls) > 1

    async def get(self, path: str, kind: type[_T], timeout_s: float) -> _T:
        """Of the current master; raises what it says, or `MasterAway`."""
        url = self.url
        try:
            answer = await self._client.get(url + path, Patience.of(timeout_s), _HEADERS)
            found = _decoded(answer, kind, url)
        except TriptychError as error:
            self.failed(url, error)
            raise MasterAway(f"master {url}: {error.message}") from None
        self.heard()
        return found

    async def post(self, path: str, body: Any, kind: type[_T], deadline: float) -> _T:
        """As `get`; of the next master if one has gone. A master may take its time to answer as
        long as it is `present`."""
        for _ in self._urls:
            url = self.url
            patience = Patience(deadline, alive=lambda: self.present)
            data = msgspec.msgpack.encode(body)
            try:
                answer = await self._client.post(url + path, data, _HEADERS, patience)
                return _decoded(answer, kind, url)
            except UpstreamError as error:
                self.failed(url, error)
        raise MasterAway("no master answers")


def _decoded(answer: bytes, kind: type[_T], url: str) -> _T:
    try:
        return msgspec.msgpack.decode(answer, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise UpstreamError(f"master {url} answered with nonsense") from None
