"""Media references to bytes: data: URLs, files and, by `web`, http(s), within limits.

Every error is a `RequestError` that names the field the reference came from. The decoder of base64
holds the interpreter's lock: 16 MB at once stop every other thread for 70 ms. In slices, with a
rest after each, a turn of the event loop waits for one slice at most.
"""

from __future__ import annotations

import asyncio
import binascii
import io
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, unquote_to_bytes

from yarl import URL

from protocol.errors import InvalidRequest
from services.frontend.config import MediaConfig
from services.frontend.media.lookups import ANONYMOUS, Caller
from services.frontend.media.web import WebFetcher, too_large, unreachable

OFFLOAD_BYTES = 1 << 20  # a millisecond's work: more leaves the event loop
_SLICE = 1 << 18  # characters, a multiple of 4; decoding them takes less than a millisecond
_REST_S = 0.0002  # a rest of no time would seldom let another thread have the lock


class MediaFetcher:
    """`close` ends its connections."""

    def __init__(self, config: MediaConfig) -> None:
        self._config = config
        self._web = WebFetcher(config)

    async def fetch(self, url: str, *, param: str, caller: Caller = ANONYMOUS) -> bytes:
        """The bytes `url` stands for. `InvalidRequest` if it may not or cannot be read,
        `PayloadTooLarge` above the limit; both name `param`. `caller`: who waits for it.
        """
        # Of its beginning: a data: URL may have megabytes.
        scheme = url[:10].partition(":")[0].lower()
        if scheme == "data":
            return await self._data(url, param)
        if scheme == "file":
            return await asyncio.to_thread(self._file, url, param)
        if scheme in ("http", "https"):
            return await self._web.fetch(url, param, caller)
        raise InvalidRequest(
            "a media URL must begin with data:, http://, https:// or file://",
            param=param,
            code="unsupported_url_scheme",
        )

    async def close(self) -> None:
        await self._web.close()

    async def _data(self, url: str, param: str) -> bytes:
        begin = url.find(",") + 1
        if not begin:
            raise InvalidRequest("a data: URL needs a comma before its data", param=param)
        is_base64 = url[: begin - 1].lower().endswith(";base64")
        length = len(url) - begin
        # Before it is decoded: base64 has four characters for three bytes, escapes three for one.
        if (length * 3 // 4 - 2 if is_base64 else length // 3) > self._config.max_bytes:
            raise too_large(self._config, param)
        data = await _offloaded(from_base64 if is_base64 else _unquoted, url, begin, param)
        if len(data) > self._config.max_bytes:
            raise too_large(self._config, param)
        return data

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
            raise unreachable(error.strerror or "no such file", param) from None
        if len(data) > self._config.max_bytes:
            raise too_large(self._config, param)
        return data


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
        raise InvalidRequest(f"the data: URL is not valid base64: {error}", param=param) from None


def from_base64(text: str, begin: int = 0) -> bytes:
    """What follows the first `begin` characters, which need no copy without them.
    Strict; line breaks, blanks and percent escapes, which some clients write, are undone.
    `ValueError` if it is no base64. Rests if it is long: not for an event loop's own thread."""
    try:
        return _decoded(text, begin)
    except ValueError:
        written = unquote(text[begin:])
        cleaned = "".join("".join(piece.split()) for piece in _slices(written, 0))
        # Padding that was left out is added.
        return _decoded(cleaned + "=" * (-len(cleaned) % 4), 0)


def _slices(text: str, begin: int) -> Iterator[str]:
    for start in range(begin, len(text), _SLICE):
        if start > begin:
            time.sleep(_REST_S)
        yield text[start : start + _SLICE]


def _decoded(text: str, begin: int) -> bytes:
    if len(text) - begin <= _SLICE:
        return binascii.a2b_base64(text[begin:], strict_mode=True)
    data = io.BytesIO()  # gives its bytes without a copy
    padded = False
    for piece in _slices(text, begin):
        if padded:
            raise ValueError("data after the padding")
        data.write(binascii.a2b_base64(piece, strict_mode=True))
        padded = piece.endswith("=")
    return data.getvalue()


def beginning(url: str) -> bytes:
    """The first bytes of a data: URL's content; none if it is not base64 as it should be, or short:
    what it is shows when it is decoded."""
    head, _, body = url[:1024].partition(",")
    if head[:5].lower() != "data:" or not head.lower().endswith(";base64") or len(body) < 64:
        return b""
    try:
        return binascii.a2b_base64(body[:64], strict_mode=True)
    except ValueError:
        return b""


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
    # O_NONBLOCK: opening a pipe would wait until somebody writes to it.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(0, "not a regular file")
    return os.fdopen(descriptor, "rb")
