"""Media from the web: each hop of a redirect is judged before it is made."""

from __future__ import annotations

import asyncio

import aiohttp
from yarl import URL

from protocol.errors import InvalidRequest, PayloadTooLarge
from services.frontend.config import MediaConfig
from services.frontend.media.lookups import (
    Caller,
    ForbiddenAddress,
    LookUps,
    is_public,
    literal_address,
)

_CHUNK = 1 << 16  # bytes read before the size is looked at again
_REDIRECTS = (301, 302, 303, 307, 308)


class WebFetcher:
    """Owns the HTTP session; `close` ends it."""

    def __init__(self, config: MediaConfig) -> None:
        self._config = config
        self._session: aiohttp.ClientSession | None = None
        self._domains = frozenset(name.lower() for name in config.allowed_domains)
        self._lookups = LookUps(public_only=not config.allow_private)

    async def close(self) -> None:
        await self._lookups.close()
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def fetch(self, url: str, param: str, caller: Caller) -> bytes:
        """The bytes at an http(s) URL; errors as of `MediaFetcher`."""
        try:
            async with asyncio.timeout(self._config.timeout_s):
                return await self._follow(_parsed(url, param), param, caller)
        except TimeoutError:
            raise unreachable(f"no answer in {self._config.timeout_s:g} s", param) from None
        except (aiohttp.InvalidURL, UnicodeError) as error:
            raise InvalidRequest(f"the URL is malformed: {error}", param=param) from None
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.os_error, ForbiddenAddress):
                raise _forbidden(param) from None
            raise unreachable("no connection", param) from None
        except (aiohttp.ClientError, OSError) as error:
            raise unreachable(type(error).__name__, param) from None

    async def _follow(self, url: URL, param: str, caller: Caller) -> bytes:
        for _ in range(self._config.max_redirects + 1):
            await self._check(url, param, caller)
            # Each hop is judged before it is made: a public host may redirect to a private address.
            async with self._client().get(url, allow_redirects=False) as response:
                if response.status not in _REDIRECTS:
                    return await self._body(response, param)
                url = url.join(_parsed(response.headers.get("Location", ""), param))
        raise unreachable(f"more than {self._config.max_redirects} redirects", param)

    async def _check(self, url: URL, param: str, caller: Caller) -> None:
        """Refuse a hop before it is made; a name's addresses are checked when they are used."""
        if url.scheme not in ("http", "https") or not url.host:
            raise _forbidden(param)
        if self._domains and url.host.lower() not in self._domains:
            raise InvalidRequest(
                f"media may not be fetched from {url.host}", param=param, code="forbidden_url"
            )
        # aiohttp asks no resolver about literal addresses: the check of names would not see them.
        address = literal_address(url.host)
        if address is None:
            # `raw_host`: by this name aiohttp asks the resolver when it connects.
            await self._lookups.find(url.raw_host or "", url.port or 0, caller)
        elif not self._config.allow_private and not is_public(address):
            raise _forbidden(param)

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    resolver=self._lookups, use_dns_cache=False, limit_per_host=32
                ),
                # One session for all clients: cookies would carry one's state to another.
                cookie_jar=aiohttp.DummyCookieJar(),
                # Compressed bodies could unfold to any size behind the limit.
                headers={"Accept-Encoding": "identity", "User-Agent": "triptych"},
                # A proxy from the environment would resolve names itself, unchecked.
                trust_env=False,
            )
        return self._session

    async def _body(self, response: aiohttp.ClientResponse, param: str) -> bytes:
        if response.status != 200:
            raise unreachable(f"HTTP status {response.status}", param)
        if (response.content_length or 0) > self._config.max_bytes:
            raise too_large(self._config, param)
        # Counted as it comes: a server may say nothing of the length, or lie.
        data = bytearray()
        async for chunk in response.content.iter_chunked(_CHUNK):
            data += chunk
            if len(data) > self._config.max_bytes:
                raise too_large(self._config, param)
        return bytes(data)


def _parsed(url: str, param: str) -> URL:
    try:
        return URL(url)
    except ValueError as error:
        raise InvalidRequest(f"the URL is malformed: {error}", param=param) from None


def _forbidden(param: str) -> InvalidRequest:
    message = "the URL leads to an address that media may not be fetched from"
    return InvalidRequest(message, param=param, code="forbidden_url")


def unreachable(reason: str, param: str) -> InvalidRequest:
    return InvalidRequest(
        f"the media cannot be fetched: {reason}", param=param, code="media_unreachable"
    )


def too_large(config: MediaConfig, param: str) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"the media are larger than {config.max_bytes} bytes (--max-media-bytes)", param=param
    )
