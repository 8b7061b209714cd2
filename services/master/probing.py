"""Questions to workers over HTTP. Imported when there is somebody to ask: aiohttp takes as long to
import as much of the rest of the master."""

from __future__ import annotations

from types import TracebackType

import aiohttp
import msgspec

from protocol.errors import UpstreamError

_AT_ONCE = 32


class ProbeClient:
    """An asynchronous context manager. What is no good answer is an `UpstreamError`."""

    def __init__(self, timeout_s: float) -> None:
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=timeout_s),
            connector=aiohttp.TCPConnector(limit=_AT_ONCE),
        )

    async def __aenter__(self) -> ProbeClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        await self._session.close()

    async def health(self, url: str) -> None:
        """Returns if the worker at `url` is healthy."""
        await self._get(f"{url}/health")

    async def model_of(self, url: str) -> str:
        """The first model that the worker names."""
        body = await self._get(f"{url}/v1/models")
        try:
            return str(msgspec.json.decode(body)["data"][0]["id"])
        except (msgspec.DecodeError, LookupError, TypeError):
            raise UpstreamError(f"{url}/v1/models names no model") from None

    async def _get(self, url: str) -> bytes:
        try:
            async with self._session.get(url) as response:
                response.raise_for_status()
                return await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise UpstreamError(str(error) or type(error).__name__) from None
