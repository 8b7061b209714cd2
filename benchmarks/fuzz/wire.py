"""Requests as bytes: heads, framing and paths that a client of good faith does not write."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

PATIENCE = b"3"
_KEPT = 5_000_000
_Fields = list[tuple[bytes, bytes]]


@dataclass
class Wire:
    """A request being written. `cut`: its client stops in the middle and stays silent a while."""

    method: bytes  # as written
    target: bytes  # path and query, as written
    body: bytes  # before it is framed
    fields: _Fields  # header fields, in order
    version: bytes = b"HTTP/1.1"  # as written
    framing: str = "length"  # how the body's end is told
    cut: bool = False
    told: list[str] = field(default_factory=list)  # what was changed in it

    def encoded(self) -> bytes:
        head = [b"%b %b %b" % (self.method, self.target, self.version)]
        head += [b"%b: %b" % pair for pair in self.fields]
        framing, body = _FRAMED[self.framing](self.body)
        head += [b"%b: %b" % pair for pair in framing]
        return b"\r\n".join(head) + b"\r\n\r\n" + body


def _chunks(body: bytes, size: int = 1000, end: bytes = b"0\r\n\r\n") -> bytes:
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + end


_LENGTH, _CODING = b"content-length", b"transfer-encoding"
_FRAMED: Mapping[str, Callable[[bytes], tuple[_Fields, bytes]]] = MappingProxyType({
    "length": lambda body: ([(_LENGTH, b"%d" % len(body))], body),
    "none": lambda body: ([], body),
    "chunked": lambda body: ([(_CODING, b"chunked")], _chunks(body)),
    "crumbs": lambda body: ([(_CODING, b"chunked")], _chunks(body[:500], 1)),
    "trailers": lambda body: ([(_CODING, b"chunked")], _chunks(body, 99, b"0\r\nx: y\r\n\r\n")),
    "wrong chunks": lambda body: ([(_CODING, b"chunked")], b"zz\r\n" + body + b"\r\n0\r\n\r\n"),
    "huge chunk": lambda body: ([(_CODING, b"chunked")], b"f" * 17 + b"\r\n" + body),
    "chunks and a length": lambda body: (
        [(_LENGTH, b"3"), (_CODING, b"chunked")], _chunks(body)),
    "a length and chunks": lambda body: (
        [(_CODING, b"chunked"), (_LENGTH, b"%d" % len(body))], body),
    "twice chunked": lambda body: ([(_CODING, b"chunked"), (_CODING, b"chunked")], _chunks(body)),
    "another coding": lambda body: ([(_CODING, b"gzip, chunked")], _chunks(body)),
    "hidden coding": lambda body: (
        [(_CODING, b"\x0bchunked"), (_LENGTH, b"%d" % len(body))], body),
    "two lengths": lambda body: ([(_LENGTH, b"%d" % len(body)), (_LENGTH, b"1")], body),
    "negative": lambda body: ([(_LENGTH, b"-1")], body),
    "plus": lambda body: ([(_LENGTH, b"+%d" % len(body))], body),
    "endless": lambda body: ([(_LENGTH, b"9" * 30)], body),
    "short": lambda body: ([(_LENGTH, b"%d" % (len(body) // 2))], body),
    "long": lambda body: ([(_LENGTH, b"%d" % (len(body) + 9))], body),
    "too large": lambda body: ([(_LENGTH, b"%d" % _KEPT)], bytes(_KEPT)),
})  # fmt: skip
_CUTTING = frozenset({"huge chunk", "endless", "long", "none"})
_METHODS = (
    b"GET", b"PUT", b"DELETE", b"PATCH", b"HEAD", b"OPTIONS", b"TRACE", b"CONNECT", b"post", b"POS",
    b"PRI", b"M-SEARCH", b"", b"P\0ST", b"POST\t",
)  # fmt: skip
_FIELDS: tuple[tuple[bytes, bytes], ...] = (
    (b"content-type", b"text/plain"), (b"content-type", b"application/msgpack"),
    (b"content-type", b"application/json; charset=\xff"), (b"content-type", b""),
    (b"content-type", b"multipart/form-data; boundary=" + b"x" * 300), (b"accept", b"*/*;q=nan"),
    (b"content-encoding", b"gzip"), (b"x-request-timeout", b"nan"), (b"x-request-timeout", b"-1"),
    (b"x-request-timeout", b"1e999"), (b"x-request-timeout", b"\xff"), (b"x-request-id", b"\xff"),
    (b"x-request-id", b"x" * 9000), (b"x-request-id", b""), (b"x-session-id", b"\xe9" * 600),
    (b"authorization", b"Bearer \xff"), (b"authorization", b"Basic"), (b"traceparent", b"\0"),
    (b"x-api-key", b"\xff\xfe"), (b"x-triptych-fleet-key", b"\xff"), (b"origin", b"http://["),
    (b"origin", b"null"), (b"host", b"["), (b"host", b"a:99999"), (b"host", b"\xff"),
    (b"host", b"a:b@c"), (b"host", b""), (b"expect", b"100-continue"), (b"expect", b"nothing"),
    (b"connection", b"upgrade"), (b"upgrade", b"h2c"), (b"upgrade", b"websocket"),
    (b"connection", b"keep-alive, close, x"), (b"x" * 9000, b"y"), (b"x", b"y" * 70_000),
    (b" folded", b"x"), (b"no colon", b""), (b"nul", b"a\0b"), (b"x\r\n y", b"z"),
    (b"x-forwarded-for", b"1.1.1.1, ::1"), (b"x-forwarded-proto", b"\xff"), (b"te", b"trailers"),
    (b"sec-fetch-site", b"cross-site"), (b"sec-fetch-mode", b"\xff"), (b"range", b"bytes=0-"),
    (b"access-control-request-method", b"POST"), (b"cookie", b"a=\xff" * 100),
)  # fmt: skip
_ENDS = (
    b"/", b"?", b"?x=%ff", b"?wait_s=nan&after=%00", b"?" + b"a=b&" * 2000, b"#x", b"/..", b"%00",
    b"%2e%2e", b"\xff", b"?latest_cache_version=1e9", b"?latest_cache_version=" + b"9" * 5000,
    b"?wait_s=1e999", b"?after=" + b"9" * 400,
)  # fmt: skip
_TARGETS = (
    b"*", b"http://[/", b"http://a:99999/", b"//", b"", b"a:22", b"\\", b"/" + b"x" * 70_000,
    b"/%", b"/%zz", b"/\xff\xfe", b"http://127.0.0.1:9/health", b"/docs", b"/openapi.json",
)  # fmt: skip
_VERSIONS = (b"HTTP/1.0", b"HTTP/0.9", b"HTTP/2.0", b"HTTP/9.9", b"", b"HTTP/1.1 x", b"JUNK/1.1")


def mangled(wire: Wire, chance: random.Random) -> None:
    """Change one thing of the head, the framing or the path."""
    change = chance.choice((_framing, _framing, _field, _field, _field, _method, _path, _version))
    change(wire, chance)


def _framing(wire: Wire, chance: random.Random) -> None:
    wire.framing = chance.choice(sorted(_FRAMED))
    if wire.framing == "too large" and chance.random() < 0.8:
        wire.framing = "crumbs"
    wire.cut |= wire.framing in _CUTTING
    wire.told.append(f"framing {wire.framing}")


def _field(wire: Wire, chance: random.Random) -> None:
    name, value = chance.choice(_FIELDS)
    if chance.random() < 0.7:
        wire.fields = [pair for pair in wire.fields if pair[0] != name]
    wire.fields += [(name, value)] * chance.choice((1, 1, 1, 2, 300))
    wire.told.append(f"field {name[:20]!r}: {value[:20]!r}")


def _method(wire: Wire, chance: random.Random) -> None:
    wire.method = chance.choice(_METHODS)
    wire.told.append(f"method {wire.method!r}")


def _path(wire: Wire, chance: random.Random) -> None:
    if chance.random() < 0.6:
        wire.target = wire.target + chance.choice(_ENDS)
    else:
        wire.target = chance.choice((*_TARGETS, b"/" + wire.target, wire.target.upper()))
    wire.told.append(f"target {wire.target[:40]!r}")


def _version(wire: Wire, chance: random.Random) -> None:
    wire.version = chance.choice(_VERSIONS)
    wire.told.append(f"version {wire.version!r}")
