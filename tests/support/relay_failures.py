"""All that a worker may do wrong when a request is relayed to it."""

import asyncio
import json

from tests.support.relay_workers import (
    DONE,
    EVENTS,
    WHOLE,
    Asked,
    Behaviour,
    Worker,
    begin,
    chunk,
    send,
)


async def hang(worker: Worker, asked: Asked, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


async def drop(worker: Worker, asked: Asked, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def not_http(worker: Worker, asked: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x00\x01 what is this\r\n\r\n")
    await asyncio.sleep(60)


def saying(
    body: bytes, kind: str = "application/json", status: int = 200, extra: str = ""
) -> Behaviour:
    async def behave(worker: Worker, asked: Asked, writer: asyncio.StreamWriter) -> None:
        await send(writer, body, kind, status, extra)

    return behave


def streaming(*pieces: bytes, end: str = "hang") -> Behaviour:
    """A stream of these pieces that then hangs, is dropped, or ends without an end mark."""

    async def behave(worker: Worker, asked: Asked, writer: asyncio.StreamWriter) -> None:
        await begin(writer)
        for piece in pieces:
            await chunk(writer, piece)
        if end == "hang":
            await asyncio.sleep(60)
        elif end == "drop":
            writer.close()
        else:
            writer.write(b"0\r\n\r\n")

    return behave


async def twice(worker: Worker, asked: Asked, writer: asyncio.StreamWriter) -> None:
    answer = json.dumps(WHOLE).encode()
    writer.write(b"HTTP/1.1 200 X\r\ncontent-type: application/json\r\n")
    writer.write(b"content-length: %d\r\n\r\n%b" % (len(answer), answer))
    await send(writer, answer.replace(b"whole", b"other"))


async def endless_head(worker: Worker, asked: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 X\r\ncontent-type: application/json\r\n")
    while True:
        writer.write(b"x: %b\r\n" % (b"y" * 4096))
        await writer.drain()


DEEP = b"[" * 100_000 + b"]" * 100_000
ERROR = b'{"error":{"message":"it broke","code":500}}'
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
GIVEN_UP = b'{"choices":[{"index":0,"message":{"content":""},"finish_reason":"abort"}]}'
FAILURES = {
    "garbage": saying(b"<html>oops</html>"),
    "half a JSON": saying(b'{"choices": [{"index"'),
    "not UTF-8": saying(b'{"choices": ["\xff"], "\xfe": 1}'),
    "too deep": saying(b'{"choices": [], "kv_transfer_params": %b}' % DEEP),
    "an error that is not UTF-8": saying(b'{"error": "\xff"}', status=500),
    "an error that is too deep": saying(b'{"error": %b}' % DEEP, status=500),
    "an endless wait": saying(ERROR, status=503, extra="retry-after: %s\r\n" % ("9" * 400)),
    "two answers": twice,
    "headers without an end": endless_head,
    "wrong content type": saying(json.dumps(WHOLE).encode(), "text/html"),
    "not HTTP": not_http,
    "500": saying(ERROR, status=500),
    "503": saying(ERROR, status=503, extra="retry-after: 1\r\n"),
    "429": saying(ERROR, status=429),
    "hang": hang,
    "drop": drop,
    "given up": saying(GIVEN_UP),
    "an error with a choice": saying(GIVEN_UP[:-1].replace(b"abort", b"stop") + b"," + ERROR[1:]),
}
STREAM_FAILURES = {
    **FAILURES,
    "no event in the stream": streaming(b": nothing\n\n", end="end"),
    "half an event": streaming(b'data: {"choices":', end="drop"),
    "an event of nonsense": streaming(b"data: {nonsense}\n\n"),
    "an event that is not UTF-8": streaming(b'data: {"choices": ["\xff"]}\n\n'),
    "an event that is too deep": streaming(b'data: {"choices": %b}\n\n' % DEEP),
    "an error event": streaming(b"data: " + ERROR + b"\n\n", DONE, end="end"),
    "given up at once": streaming(b"data: " + GIVEN_UP + b"\n\n", DONE, end="end"),
    "given up beside its role": streaming(ROLE + b"data: " + GIVEN_UP + b"\n\n" + DONE, end="end"),
    "given up after its role": streaming(ROLE, b"data: " + GIVEN_UP + b"\n\n", DONE, end="end"),
    "dropped after its role": streaming(ROLE, end="drop"),
    "JSON instead of a stream": saying(json.dumps(WHOLE).encode()),
}
UNASKED = {"a stream that was not asked for": streaming(EVENTS[0])}
