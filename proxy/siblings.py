"""What the processes of one proxy say to each other: metrics, and the level of their logs.

Each listens on a Unix socket in a folder of theirs. A caller sends one line, and reads to the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path

from protocol.logs import set_log_level

LABEL = "process"
_METRICS, _LEVEL = b"metrics", b"level "
_ANSWER_S = 1.0  # a process that takes longer is left out of a scrape
_TELL_S = 0.2
_MOST = 64 << 20  # bytes of one process's metrics


class Siblings:
    """The processes of a proxy, as one of them sees the others. `number`: its own, from 0 on."""

    def __init__(self, folder: Path, number: int, count: int) -> None:
        self._folder = folder
        self._number = number
        self._others = [other for other in range(count) if other != number]

    @contextlib.asynccontextmanager
    async def answered(self, metrics: Callable[[], bytes]) -> AsyncGenerator[None, None]:
        """Answer the others for as long as the context lasts."""

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, TimeoutError, ValueError):
                async with asyncio.timeout(_ANSWER_S):
                    asked = (await reader.readline()).rstrip(b"\n")
                    if asked == _METRICS:
                        writer.write(metrics())
                        await writer.drain()
                    elif asked.startswith(_LEVEL):
                        set_log_level(asked.removeprefix(_LEVEL).decode())
            writer.close()

        path = self._path(self._number)
        path.unlink(missing_ok=True)  # of a process before this one, which was killed
        server = await asyncio.start_unix_server(answer, path)
        try:
            yield
        finally:
            server.close()
            path.unlink(missing_ok=True)

    async def metrics(self, own: bytes) -> bytes:
        """Of all processes that answer, in Prometheus' text format."""
        others = await asyncio.gather(*map(self._metrics_of, self._others))
        found = {self._number: own, **dict(zip(self._others, others, strict=True))}
        return merged({number: found[number] for number in sorted(found) if found[number]})

    async def _metrics_of(self, other: int) -> bytes:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_ANSWER_S):
                reader, writer = await asyncio.open_unix_connection(self._path(other), limit=_MOST)
                with contextlib.closing(writer):
                    writer.write(_METRICS + b"\n")
                    return await reader.read(-1)
        return b""

    def tell_level(self, level: str) -> None:
        """The others write log lines from `level` on."""
        for other in self._others:
            with (
                contextlib.suppress(OSError),
                socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller,
            ):
                caller.settimeout(_TELL_S)
                caller.connect(str(self._path(other)))
                caller.sendall(_LEVEL + level.encode() + b"\n")

    def _path(self, number: int) -> Path:
        return self._folder / str(number)


def merged(texts: Mapping[int, bytes]) -> bytes:
    """Metrics of several processes as one text: each sample has its process's number as a label.
    A scraper wants all samples of one name together, its description before them."""
    families: dict[bytes, list[bytes]] = {}
    for number, text in texts.items():
        label = b'%b="%d"' % (LABEL.encode(), number)
        samples: list[bytes] = []
        for line in text.splitlines():
            if line.startswith(b"# HELP "):
                samples = families.setdefault(line, [])
            elif line.startswith(b"#"):
                # Each process describes its types; one description is enough.
                if line not in samples:
                    samples.append(line)
            elif line:
                samples.append(_labelled(line, label))
    lines = [line for told, samples in families.items() for line in (told, *samples)]
    return b"\n".join(lines) + b"\n"


def _labelled(sample: bytes, label: bytes) -> bytes:
    name, space, value = sample.partition(b" ")
    if b"{" in name:
        name, _, rest = sample.partition(b"{")
        return b"%b{%b,%b" % (name, label, rest)
    return b"%b{%b}%b%b" % (name, label, space, value)
