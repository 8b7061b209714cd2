"""HTTP requests as no client should write them: cut anywhere, endless, forged."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import InvalidRequest
from proxy.relay.request_parser import RequestParser
from tests.support.listening import post

CHAT = "/v1/chat/completions"
LINE = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"


def chunked(*pieces: bytes, extension: bytes = b"", trailers: bytes = b"") -> bytes:
    body = b"".join(b"%x%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in pieces)
    return LINE + b"transfer-encoding: chunked\r\n\r\n" + body + b"0\r\n" + trailers + b"\r\n"


REQUESTS = {
    "a length": (post(CHAT, b"body"), b"body"),
    "a body like a head": (post(CHAT, b"\r\n\r\nPOST / HTTP/1.1\r\n\r\n"), None),
    "line ends at the end": (post(CHAT, b"x\r\n\r\n\r\n"), b"x\r\n\r\n\r\n"),
    "nothing": (post(CHAT, b""), b""),
    "names in capitals": (post(CHAT, b"body").replace(b"content-length", b"CONTENT-LENGTH"), None),
    "chunks": (chunked(b"bo", b"dy"), b"body"),
    "chunks with extensions": (chunked(b"bo", b"dy", extension=b';a="b";c'), b"body"),
    "chunks and trailers": (chunked(b"body", trailers=b"x-request-timeout: never\r\n"), b"body"),
    "an upgrade": (post(CHAT, b"b\r\n\r\ny", "Connection: Upgrade", "Upgrade: h2c"), None),
}  # fmt: skip


def body_of(name: str) -> bytes:
    data, body = REQUESTS[name]
    return data.partition(b"\r\n\r\n")[2] if body is None else body


@pytest.mark.parametrize("name", REQUESTS)
@settings(max_examples=40)
@given(cuts=st.lists(st.integers(0, 250), max_size=10))
def test_a_request_is_the_same_however_it_is_cut(name: str, cuts: list[int]) -> None:
    data, _ = REQUESTS[name]
    places = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    reader = RequestParser(1000, keep_raw=True)
    for start, end in itertools.pairwise(places):
        assert not reader.complete
        reader.feed(data[start:end])
    assert reader.complete and reader.keep_alive
    assert reader.body == body_of(name)
    assert b"x-request-timeout" not in reader.headers
    assert b"".join(reader.raw or ()) == data


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_may_come_byte_by_byte(name: str) -> None:
    data, _ = REQUESTS[name]
    reader = RequestParser(1000, keep_raw=False)
    for place in range(len(data)):
        assert not reader.complete
        reader.feed(data[place : place + 1])
    assert reader.complete and reader.body == body_of(name)


FORGED = {
    "two lengths": LINE + b"content-length: 2\r\ncontent-length: 3\r\n\r\nabc",
    "the same length twice": LINE + b"content-length: 2\r\ncontent-length: 2\r\n\r\nab",
    "a list of lengths": LINE + b"content-length: 2, 2\r\n\r\nab",
    "a length and chunks": LINE + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\nab",
    "chunks and a length": LINE + b"transfer-encoding: chunked\r\ncontent-length: 2\r\n\r\nab",
    "identity": LINE + b"transfer-encoding: identity\r\n\r\nab",
    "chunked, but not at last": LINE + b"transfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "a signed length": LINE + b"content-length: +2\r\n\r\nab",
    "a negative length": LINE + b"content-length: -2\r\n\r\nab",
    "a length without end": LINE + b"content-length: 99999999999999999999\r\n\r\nab",
    "a space before the colon": LINE + b"content-length : 2\r\n\r\nab",
    "a folded line": LINE + b"x: a\r\n b\r\n\r\n",
    "a bare line feed": LINE.replace(b"\r\n", b"\n") + b"\n",
    "a bare return": LINE + b"x: a\rb: c\r\n\r\n",
    "a zero byte": LINE + b"x: a\0b\r\n\r\n",
    "a chunk of a negative size": LINE + b"transfer-encoding: chunked\r\n\r\n-1\r\n",
    "a chunk of a size too large": LINE + b"transfer-encoding: chunked\r\n\r\n" + b"f" * 17,
    "an upgrade with chunks": LINE
    + b"transfer-encoding: chunked\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n0\r\n\r\n",
    "another version": LINE.replace(b"HTTP/1.1", b"HTTP/3.0") + b"\r\n",
}


@pytest.mark.parametrize("name", FORGED)
def test_what_could_be_read_in_two_ways_is_refused(name: str) -> None:
    for cut in range(1, len(FORGED[name])):
        reader = RequestParser(1 << 20, keep_raw=False)
        with pytest.raises(InvalidRequest):
            reader.feed(FORGED[name][:cut])
            reader.feed(FORGED[name][cut:])
        assert not reader.complete


@pytest.mark.parametrize(
    "endless",
    [
        LINE + b"a: ",
        LINE + b"transfer-encoding: chunked\r\n\r\n1;",
        LINE + b"transfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\na: ",
    ],
)
def test_endless_framing_is_refused(endless: bytes) -> None:
    reader = RequestParser(1 << 30, keep_raw=True)
    reader.feed(endless)
    with pytest.raises(InvalidRequest):
        for _ in range(100):
            reader.feed(b"x" * 1000)


@pytest.mark.parametrize("cut", [0, 50_000])
def test_a_large_head_is_refused_though_all_of_the_request_has_come(cut: int) -> None:
    data = post(CHAT, b"body", f"a: {'b' * 100_000}")
    reader = RequestParser(1 << 20, keep_raw=False)
    with pytest.raises(InvalidRequest, match="headers"):
        for piece in (data[:cut], data[cut:]):
            reader.feed(piece)
    assert not reader.headers_complete


@pytest.mark.parametrize("turned_away", [False, True])
def test_endless_trailers_are_refused_however_large_the_body_was(turned_away: bool) -> None:
    """Also of a request that is answered already, whose rest is thrown away."""
    reader, size = RequestParser(1 << 30, keep_raw=False), 1 << 20
    reader.feed(LINE + b"transfer-encoding: chunked\r\n\r\n")
    reader.feed(b"%x\r\n%b\r\n" % (size, bytes(size)))
    if turned_away:
        reader.turn_away()
    reader.feed(b"0\r\na: ")
    with pytest.raises(InvalidRequest, match="headers"):
        for _ in range(100):
            reader.feed(b"x" * 1000)


def test_small_pieces_take_no_more_memory_than_their_bytes() -> None:
    reader = RequestParser(1 << 20, keep_raw=False)
    reader.feed(LINE + b"transfer-encoding: chunked\r\n\r\n")
    for _ in range(10_000):
        reader.feed(b"2\r\nab\r\n")
    assert len(reader._pieces) == 1 and len(reader._crumbs) == 19_998
    reader.feed(b"0\r\n\r\n")
    assert reader.body == b"ab" * 10_000
