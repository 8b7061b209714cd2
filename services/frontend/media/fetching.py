"""Media references to bytes: data: URLs, http(s) and files, within limits.

Every error is a `RequestError` that names the field the reference came from.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote_to_bytes

import aiohttp
from yarl import URL

from protocol.errors import InvalidRequest, PayloadTooLarge
from services.frontend.config import MediaConfig
from services.frontend.media.lookups import (
    ANONYMOUS,
    Caller,
    ForbiddenAddress,
    LookUps,
    is_public,
    literal_address,
)
from services.frontend.media.off_loop import from_base64

OFFLOAD_BYTES = 1 << 20  # a millisecond's work: more leaves the event loop
_CHUNK = 1 << 16  # bytes read before the size is looked at again
_REDIRECTS = (301, 302, 303, 307, 308)


class MediaFetcher:
    """Owns the HTTP session; `close` ends it."""

    def __init__(self, config: MediaConfig) -> None:
        self._config = config
        self._session: aiohttp.ClientSession | None = None
        self._domains = frozenset(name.lower() for name in config.allowed_domains)
        self._lookups = LookUps(public_only=not config.allow_private)

    async def fetch(self, url: str, *, param: str, caller: Caller = ANONYMOUS) -> bytes:
        """The bytes `url` stands for. `InvalidRequest` if it may not or cannot be read,
        `PayloadTooLarge` above the limit; both name `param`. `caller`: who waits for it.
        """
        scheme = url[:10].partition(":")[0].lower()
        if scheme == "data":
            return await self._data(url, param)
        if scheme == "file":
            return await asyncio.to_thread(self._file, url, param)
        if scheme in ("http", "https"):
            return await self._http(url, param, caller)
        raise InvalidRequest(
            "a media URL must begin with data:, http://, https:// or file://",
            param=param,
            code="unsupported_url_scheme",
        )

    async def close(self) -> None:
        await self._lookups.close()
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _data(self, url: str, param: str) -> bytes:
        begin = url.find(",") + 1
        if not begin:
            raise _invalid("a data: URL needs a comma before its data", param)
        is_base64 = url[: begin - 1].lower().endswith(";base64")
        length = len(url) - begin
        # Before it is decoded: base64 has four characters for three bytes, escapes three for one.
        if (length * 3 // 4 - 2 if is_base64 else length // 3) > self._config.max_bytes:
            raise self._too_large(param)
        data = await _offloaded(from_base64 if is_base64 else _unquoted, url, begin, param)
        if len(data) > self._config.max_bytes:
            raise self._too_large(param)
        return data

    async def _http(self, url: str, param: str, caller: Caller) -> bytes:
        try:
            async with asyncio.timeout(self._config.timeout_s):
                return await self._follow(_parsed(url, param), param, caller)
        except TimeoutError:
            raise _unreachable(f"no answer in {self._config.timeout_s:g} s", param) from None
        except (aiohttp.InvalidURL, UnicodeError) as error:
            raise _invalid(f"the URL is malformed: {error}", param) from None
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.os_error, ForbiddenAddress):
                raise _forbidden(param) from None
            raise _unreachable("no connection", param) from None
        except (aiohttp.ClientError, OSError) as error:
            raise _unreachable(type(error).__name__, param) from None

    async def _follow(self, url: URL, param: str, caller: Caller) -> bytes:
        for _ in range(self._config.max_redirects + 1):
            await self._check(url, param, caller)
            # Each hop is judged before it is made: a public host may redirect to a private address.
            async with self._client().get(url, allow_redirects=False) as response:
                if response.status not in _REDIRECTS:
                    return await self._body(response, param)
                url = url.join(_parsed(response.headers.get("Location", ""), param))
        raise _unreachable(f"more than {self._config.max_redirects} redirects", param)

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
            raise _unreachable(f"HTTP status {response.status}", param)
        if (response.content_length or 0) > self._config.max_bytes:
            raise self._too_large(param)
        # Counted as it comes: a server may say nothing of the length, or lie.
        data = bytearray()
        async for chunk in response.content.iter_chunked(_CHUNK):
            data += chunk
            if len(data) > self._config.max_bytes:
                raise self._too_large(param)
        return bytes(data)

    def _file(self, url: str, param: str) -> bytes:
        root = self._config.allowed_local_path
        path = _local_path(url)
        if root is None or path is None or not path.is_relative_to(root.resolve()):
            raise InvalidRequest(
                "file:// URLs must lie in the folder this server allows",
                param=param,
                code="forbidden_url",
            )
        try:
            with _open_regular(path) as file:
                data = file.read(self._config.max_bytes + 1)
        except OSError as error:
            raise _unreachable(error.strerror or "no such file", param) from None
        if len(data) > self._config.max_bytes:
            raise self._too_large(param)
        return data

    def _too_large(self, param: str) -> PayloadTooLarge:
        return PayloadTooLarge(f"media larger than {self._config.max_bytes} bytes", param=param)


def _parsed(url: str, param: str) -> URL:
    try:
        return URL(url)
    except ValueError as error:
        raise _invalid(f"the URL is malformed: {error}", param) from None


def _unquoted(url: str, begin: int) -> bytes:
    return unquote_to_bytes(url[begin:])


async def _offloaded(
    decode: Callable[[str, int], bytes], url: str, begin: int, param: str
) -> bytes:
    try:
        if len(url) > OFFLOAD_BYTES:
            return await asyncio.to_thread(decode, url, begin)
        return decode(url, begin)
    except ValueError as error:
        raise _invalid(f"the data: URL is not valid base64: {error}", param) from None


def _local_path(url: str) -> Path | None:
    """The path of a file:// URL without symbolic links and dots, None if it names another host."""
    try:
        parsed = URL(url)
        if parsed.host not in (None, "", "localhost"):
            return None
        return Path(parsed.path).resolve()
    except (ValueError, OSError, RuntimeError):
        return None


def _open_regular(path: Path) -> BinaryIO:
    """Open a file, but no pipe or device, and nothing that became a link meanwhile."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(0, "not a regular file")
    return os.fdopen(descriptor, "rb")


def _invalid(message: str, param: str) -> InvalidRequest:
    return InvalidRequest(message, param=param)


def _forbidden(param: str) -> InvalidRequest:
    message = "the URL leads to an address that media may not be fetched from"
    return InvalidRequest(message, param=param, code="forbidden_url")


def _unreachable(reason: str, param: str) -> InvalidRequest:
    return InvalidRequest(
        f"the media cannot be fetched: {reason}", param=param, code="media_unreachable"
    )
