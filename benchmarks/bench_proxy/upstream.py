"""Fake workers for `bench_proxy`: the least that an EPD worker can be, as fast as Python goes.

`python -m benchmarks.bench_proxy.upstream` serves an encoder, a prefill and a decode worker on
three free loopback ports and prints them. A decode worker streams `EVENTS` events, each in a step
of its own, or one every `--gap` seconds where the request's `user` is "slow". An encoder says
nothing of the embedding where it is "plain", as one whose connector has nothing to say.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import re
from dataclasses import dataclass
from typing import cast

import uvloop

EVENTS = 16
SLOW_EVENTS = 20
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_END = 1000
_USAGE = b'"usage":{"prompt_tokens":20,"completion_tokens":16,"total_tokens":36}'
_WHOLE = (
    b'{"id":"c","object":"chat.completion","created":1,"model":"fake","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"' + b"word " * EVENTS + b'"},"logprobs":null,'
    b'"finish_reason":"length","stop_reason":null}],' + _USAGE + b"%b}"
)
_EVENT = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"fake","choices":[{'
    b'"index":0,"delta":{"content":"word "},"logprobs":null,"finish_reason":null}]}\n\n'
)
_KV = (
    b',"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":'
    b'[[1,2,3,4]],"remote_engine_id":"e","remote_request_id":"r","remote_host":"127.0.0.1",'
    b'"remote_port":5600,"tp_size":1,"remote_num_tokens":20}'
)
_EC = (
    b',"ec_transfer_params":{"' + b"ab" * 32 + b'":{"modality":"image","item_indices":[0],'
    b'"metadata":{"image_grid_thw":[1,44,80]},"size_bytes":4505600,"shape":[880,2560]}}'
)
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)


@dataclass
class Counts:
    """What all workers of this process have been sent."""

    requests: int = 0
    bytes: int = 0


def _answer(body: bytes) -> bytes:
    return _HEAD % len(body) + body


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


_ANSWERS = {
    "encode": _answer(_WHOLE % _EC),
    "prefill": _answer(_WHOLE % _KV),
    "decode": _answer(_WHOLE % b""),
}
_EVENT_CHUNK = _chunk(_EVENT)
_END_CHUNKS = _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class FakeWorker(asyncio.Protocol):
    def __init__(self, role: str, counts: Counts, gap_s: float) -> None:
        self._role, self._counts, self._gap = role, counts, gap_s
        self._loop = asyncio.get_running_loop()
        self._head = self._ends = b""
        self._size = self._missing = 0
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Of a body only its beginning and its end are kept: they are enough to tell requests."""
        if self._missing:
            self._missing -= len(data)
            self._ends = self._ends[:_END] + data[-_END:]
        else:
            data = self._head + data
            end = data.find(b"\r\n\r\n") + 4
            if end < 4:
                self._head = data
                return
            found = _LENGTH.search(data, 0, end)
            self._size = int(found[1]) if found else 0
            self._missing = self._size - len(data) + end
            self._head = data[:end]
            self._ends = data[end : end + _END] + data[end:][-_END:]
        if self._missing <= 0:
            head, self._head, self._missing = self._head, b"", 0
            self._request(head)

    def _request(self, head: bytes) -> None:
        if head.startswith(b"GET"):
            self._inform(head)
            return
        self._counts.requests += 1
        self._counts.bytes += self._size
        ends = self._ends
        if self._role == "decode" and (b'"stream":true' in ends or b'"stream": true' in ends):
            slow = b'"slow"' in ends
            self._transport.write(_STREAM_HEAD + _EVENT_CHUNK)
            self._next(SLOW_EVENTS if slow else EVENTS - 1, self._gap if slow else 0.0)
        elif self._role == "encode" and b'"plain"' in ends:
            self._transport.write(_ANSWERS["decode"])
        else:
            self._transport.write(_ANSWERS[self._role])

    def _next(self, left: int, gap_s: float) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(_EVENT_CHUNK if left else _END_CHUNKS)
        if not left:
            return
        if gap_s:
            self._loop.call_later(gap_s, self._next, left - 1, gap_s)
        else:
            self._loop.call_soon(self._next, left - 1, gap_s)

    def _inform(self, head: bytes) -> None:
        if head.startswith(b"GET /stats"):
            text = b'{"requests":%d,"bytes":%d}' % (self._counts.requests, self._counts.bytes)
        elif head.startswith(b"GET /server_info"):
            self._transport.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
            return
        else:
            text = b'{"object":"list","version":"0","data":[{"id":"fake","root":"fake"}]}'
        self._transport.write(_answer(text))


async def serve(gap_s: float) -> None:
    """Until killed."""
    loop = asyncio.get_running_loop()
    counts = Counts()
    ports = []
    for role in ("encode", "prefill", "decode"):
        server = await loop.create_server(
            functools.partial(FakeWorker, role, counts, gap_s), "127.0.0.1", 0, backlog=1024
        )
        ports.append(server.sockets[0].getsockname()[1])
    print("ready", *ports, flush=True)
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--gap", type=float, default=0.05, help="seconds between slow events")
    uvloop.run(serve(parser.parse_args().gap))


if __name__ == "__main__":
    main()
