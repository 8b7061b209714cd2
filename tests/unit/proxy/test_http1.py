"""Heads that came before are not parsed again, and nothing else is taken for them."""

import pytest

from protocol.errors import PayloadTooLarge
from proxy.relay.request_parser import RequestHead, RequestParser
from proxy.upstream.answer import AnswerHead, AnswerParser
from proxy.upstream.http1 import KnownHeads, MessageHead

ANSWER = (
    b"HTTP/1.1 200 OK\r\ndate: now\r\ncontent-length: %d\r\n"
    b"content-type: application/json\r\n\r\n%b"
)
REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n"
    b"Authorization: Bearer K\r\n\r\n%b"
)


def learnt(data: bytes) -> KnownHeads[AnswerHead]:
    """What one answer teaches."""
    heads: KnownHeads[AnswerHead] = KnownHeads(4)
    assert heads.find(data) is None
    parser = AnswerParser()
    parser.feed(data)
    assert parser.complete
    parser.learn(data, heads)
    return heads


def found(data: bytes, heads: KnownHeads[AnswerHead]) -> bytes | None:
    """The body of an answer that is all there, and nothing else."""
    known = heads.find(data)
    if known is None:
        return None
    head, length, begin = known
    assert head == AnswerHead(b"application/json", b"", True)
    return data[begin:] if len(data) == begin + length else None


def test_an_answer_of_another_length_under_the_same_head_is_known() -> None:
    heads = learnt(ANSWER % (2, b"{}"))
    again = ANSWER % (11, b'{"more": 1}')
    for _ in range(2):
        assert found(again, heads) == b'{"more": 1}'


@pytest.mark.parametrize(
    "data",
    [
        ANSWER % (3, b"{}"),  # not all there
        ANSWER % (2, b"{}") + b"HTTP",  # more than an answer
        (ANSWER % (2, b"{}")).replace(b"now", b"now "),
        (ANSWER % (2, b"{}")).replace(b"200", b"500"),
        (ANSWER % (2, b"{}")).replace(b": 2", b": 2x"),
        (ANSWER % (2, b"{}")).replace(b"\r\n\r\n", b"\r\n"),
    ],
)
def test_what_differs_in_more_than_the_length_is_parsed(data: bytes) -> None:
    heads = learnt(ANSWER % (2, b"{}"))
    assert found(data, heads) is None
    assert found(ANSWER % (4, b"true"), heads) == b"true"
    assert found(data, heads) is None  # nor with the head of the message before at hand


@pytest.mark.parametrize("twice", [b"content-length: 2\r\n", b"Transfer-Encoding: identity\r\n"])
def test_a_head_whose_end_is_said_in_two_ways_is_not_learnt(twice: bytes) -> None:
    head = MessageHead.of(ANSWER.replace(b"date: now\r\n", twice) % (2, b"{}"))
    assert head is not None and not head.learnable


def test_only_few_heads_of_many_are_learnt_where_none_comes_twice() -> None:
    heads: KnownHeads[int] = KnownHeads(1000)
    told = [ANSWER.replace(b"now", b"%d" % i) % (2, b"{}") for i in range(320)]
    for number, data in enumerate(told):
        heads.learn(data, 2, number)
    assert sum(heads.find(data) is not None for data in told) < 40


def test_of_two_heads_in_turn_each_is_known_by_its_own_bytes() -> None:
    heads: KnownHeads[int] = KnownHeads(4)
    told = [ANSWER.replace(b"now", name) % (2, b"{}") for name in (b"a", b"b")]
    for number, data in enumerate(told):
        heads.learn(data, 2, number)
    for _ in range(2):
        assert [known[0] for data in told if (known := heads.find(data))] == [0, 1]


def read(data: bytes, heads: KnownHeads[RequestHead], *, cut: int = 0) -> RequestParser:
    parser = RequestParser(1000, keep_raw=False, heads=heads)
    for piece in (data[:cut], data[cut:]) if cut else (data,):
        parser.feed(piece)
    return parser


def said(parser: RequestParser) -> object:
    return (parser.path, parser.headers, parser.body, parser.keep_alive, parser.complete)


@pytest.mark.parametrize("cut", [0, 20, len(REQUEST), len(REQUEST) + 2])
def test_a_known_request_reads_as_the_parser_reads_it(cut: int) -> None:
    heads: KnownHeads[RequestHead] = KnownHeads(2)
    read(REQUEST % (2, b"{}"), heads)
    data = REQUEST % (12, b'{"n": "two"}')
    again = read(data, heads, cut=cut)
    assert said(again) == said(read(data, KnownHeads(2)))
    assert again.complete and again.headers[b"content-length"] == b"12"


def test_a_requests_headers_are_its_own() -> None:
    heads: KnownHeads[RequestHead] = KnownHeads(2)
    for _ in range(3):
        request = read(REQUEST % (2, b"{}"), heads)
        assert request.headers.pop(b"authorization") == b"Bearer K"


def test_what_follows_a_known_request_ends_the_connection() -> None:
    heads: KnownHeads[RequestHead] = KnownHeads(2)
    assert read(REQUEST % (2, b"{}"), heads).keep_alive
    second = read(REQUEST % (2, b"{}") + b"GET / HTTP/1.1\r\n\r\n", heads)
    assert second.complete and second.body == b"{}" and not second.keep_alive


def test_a_known_request_that_is_too_large_is_refused() -> None:
    heads: KnownHeads[RequestHead] = KnownHeads(2)
    read(REQUEST % (2, b"{}"), heads)
    with pytest.raises(PayloadTooLarge, match="larger than 1000"):
        read(REQUEST % (2000, b"{"), heads)
