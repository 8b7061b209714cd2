"""The relay's parts on their own: events, large media kept aside, the breaker, requests as read."""

import itertools
import json
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from protocol.errors import InvalidRequest, PayloadTooLarge
from proxy.fleet.worker import Breaker
from proxy.relay.data_urls import DataUrls
from proxy.relay.request import ClientRequest, for_worker
from proxy.relay.request_parser import RequestParser
from proxy.upstream import sse
from proxy.upstream.answer import size_of
from proxy.upstream.sse import EventCutter, EventTooLong, _end_of_events

EVENTS = b': hello\n\ndata: {"a":1}\n\ndata: {"b":\ndata: 2}\r\n\r\ndata: [DONE]\n\n'


@given(st.lists(st.integers(0, len(EVENTS)), max_size=12))
def test_events_are_cut_between_events_only(cuts: list[int]) -> None:
    cutter = EventCutter()
    places = [0, *sorted(cuts), len(EVENTS)]
    given_out = b""
    for start, end in itertools.pairwise(places):
        given_out += cutter.feed(EVENTS[start:end])
        assert EVENTS.startswith(given_out)
        assert not given_out or given_out.endswith((b"\n\n", b"\r\n\r\n"))
    assert given_out == EVENTS
    assert cutter.ended


def test_nothing_follows_the_end_mark() -> None:
    cutter = EventCutter()
    assert cutter.feed(b"data: [DONE]\n\n") == b"data: [DONE]\n\n"
    assert cutter.feed(b"data: more\n\n") == b""


def test_an_event_without_an_end_is_not_kept_for_ever() -> None:
    cutter = EventCutter()
    with pytest.raises(EventTooLong):
        for _ in range(20):
            cutter.feed(b"data: " + b"x" * (1 << 20))


@pytest.mark.parametrize("piece", [1, 3, 1400])
def test_an_event_is_looked_through_once_however_it_comes(piece: int) -> None:
    data = b"data: " + b"x" * 50_000 + b"\n\n"
    looked = 0

    def counted(data: bytes) -> int:
        nonlocal looked
        looked += len(data)
        return _end_of_events(data)

    with patch.object(sse, "_end_of_events", counted):
        cutter = EventCutter()
        pieces = [cutter.feed(data[i : i + piece]) for i in range(0, len(data), piece)]
    assert b"".join(pieces) == data and not any(pieces[:-1])
    assert looked <= (1 + 3 / piece) * len(data) + piece


URLS = st.sampled_from(
    [
        "data:image/png;base64," + "A" * 5000,
        "data:image/png;base64," + "B" * 9000,
        'data:text/plain,"' + "C" * 6000,
        "data:short",
        "https://example.com/cat.png",
        "triptych-media:0:",
        'say "data:' + "D" * 5000,
        "data:\\" + "E" * 5000,
    ]
)


@given(st.lists(URLS, max_size=6))
def test_large_urls_come_back_byte_for_byte(urls: list[str]) -> None:
    body = json.dumps({"urls": urls}).encode()
    data_urls = DataUrls(body)
    parsed = json.loads(data_urls.small)["urls"]
    again = b"".join(data_urls.fill(json.dumps({"urls": parsed[::-1]}).encode()))
    assert json.loads(again) == {"urls": urls[::-1]}
    plain = [url for url in urls if url.startswith("data:image")]
    assert len(data_urls.small) <= len(body) - sum(len(url) - 100 for url in plain)


@pytest.mark.parametrize("before", ['say "', 'say \\"', 'say \\\\"'])
def test_a_url_that_a_text_quotes_stays_in_it(before: str) -> None:
    """What texts begin with finds their prefixes in caches: a stand-in is another one each time."""
    body = json.dumps({"text": f"{before}data:," + "A" * 10000}).encode()
    assert DataUrls(body).small == body


@pytest.mark.parametrize("run", [1, 2, 20_000, 20_001])
def test_backslashes_before_a_url_are_counted_at_once(run: int) -> None:
    url = b'"data:,' + b"A" * 10_000 + b'"'
    body = b'{"a":"' + b"\\" * run + url
    # Behind an even number of them the quote ends the text, and none begins with the URL's bytes.
    assert (DataUrls(body).small == body) == (run % 2 == 1)


def test_short_urls_without_number_are_not_looked_at_one_by_one() -> None:
    long = b'"data:,' + b"A" * 10_000 + b'"'
    few, many = (b'["data:x"' + b',"data:x"' * n + b"," + long + b"]" for n in (10, 1 << 16))
    assert len(DataUrls(few).small) < 1000
    assert DataUrls(many).small == many


def test_kept_aside_bytes_are_counted() -> None:
    body = json.dumps({"url": "data:," + "A" * 10000}).encode()
    assert size_of(DataUrls(body).fill(DataUrls(body).small)) < 200
    data_urls = DataUrls(body)
    assert size_of(data_urls.fill(data_urls.small)) == len(body)


def test_a_breaker_opens_after_failures_in_a_row_only() -> None:
    breaker = Breaker(threshold=3, cooldown_s=10.0)
    for _ in range(5):
        breaker.failed(0.0)
        breaker.failed(0.0)
        breaker.succeeded()
    assert breaker.admits(0.0)
    for _ in range(3):
        breaker.failed(1.0)
    assert not breaker.admits(10.9)
    assert breaker.wait_s(4.0) == 7.0


def test_an_open_breaker_lets_one_request_try() -> None:
    breaker = Breaker(threshold=1, cooldown_s=10.0)
    breaker.failed(0.0)
    assert breaker.admits(10.0)
    breaker.started(10.0)
    assert not breaker.admits(10.1)  # the trial is under way
    breaker.failed(11.0)
    assert not breaker.admits(20.9)
    breaker.started(21.0)
    breaker.succeeded()
    assert breaker.admits(21.0) and breaker.closed


def request_bytes(body: bytes, *headers: str, chunked: bool = False) -> bytes:
    framing = "transfer-encoding: chunked" if chunked else f"content-length: {len(body)}"
    lines = ["POST /v1/chat/completions HTTP/1.1", "host: x", framing, *headers]
    sent = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if chunked else body
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + sent


@pytest.mark.parametrize("chunked", [False, True])
@given(cuts=st.lists(st.integers(0, 200), max_size=8))
def test_requests_are_read_however_they_arrive(chunked: bool, cuts: list[int]) -> None:
    data = request_bytes(b"x" * 50, "X-Request-Id: me", chunked=chunked)
    reader = RequestParser(100, keep_raw=True)
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, end in itertools.pairwise(sorted(set(places))):
        assert not reader.complete
        reader.feed(data[start:end])
    assert reader.complete and reader.keep_alive
    assert reader.body == b"x" * 50
    assert reader.path == "/v1/chat/completions"
    assert reader.headers[b"x-request-id"] == b"me"
    assert b"".join(reader.raw or ()) == data


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_too_large_is_refused_and_then_counted_only(chunked: bool) -> None:
    reader = RequestParser(10, keep_raw=False)
    with pytest.raises(PayloadTooLarge):
        reader.feed(request_bytes(b"x" * 15, chunked=chunked)[:-1])
    reader.turn_away()
    assert not reader.overflowing
    reader = RequestParser(10, keep_raw=False)
    with pytest.raises(PayloadTooLarge):
        reader.feed(request_bytes(b"x" * 25, chunked=chunked))
    assert reader.overflowing or not chunked


def test_a_pipelined_request_ends_the_connection() -> None:
    for chunked in (False, True):
        reader = RequestParser(100, keep_raw=False)
        data = request_bytes(b"one", chunked=chunked)
        reader.feed(data + data)
        assert reader.complete and reader.body == b"one"
        assert not reader.keep_alive


@pytest.mark.parametrize("data", [b"POST /v1/x y z\r\n\r\n", b"POST /v1 HTTP/1.1\r\nx y\r\n\r\n"])
def test_what_is_not_http_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest):
        RequestParser(10, keep_raw=False).feed(data)


def test_endless_headers_are_refused() -> None:
    reader = RequestParser(10, keep_raw=False)
    with pytest.raises(InvalidRequest):
        for _ in range(100):
            reader.feed(b"POST / HTTP/1.1\r\n" + b"a: " + b"b" * 1000)


def test_what_goes_on_with_a_call() -> None:
    headers = {b"authorization": b"Bearer x", b"x-request-id": b"me", b"cookie": b"secret"}
    call = ClientRequest("/v1/chat/completions", headers, b"")
    assert call.fields() == b"x-request-id: me\r\nauthorization: Bearer x\r\n"
    assert call.fields(b"-1").startswith(b"x-request-id: me-1\r\n")
    drawn = {ClientRequest("/", {}, b"").request_id for _ in range(100)}
    assert len(drawn) == 100


def test_a_body_names_the_call_if_no_header_does() -> None:
    call = ClientRequest("/v1/chat/completions", {}, b"")
    drawn = call.request_id
    call.name("mine")
    assert call.fields() == b"x-request-id: mine-%b\r\n" % drawn[:8]
    call.name("m" * 500)
    assert len(call.fields()) == len(b"x-request-id: \r\n") + 128
    for odd in (None, 5, "", "a\r\nb", "\ud800é"):
        call.name(odd)
        assert call.fields() == b"x-request-id: %b\r\n" % drawn
    named = ClientRequest("/v1/chat/completions", {b"x-request-id": b"me"}, b"")
    named.name("mine")
    assert named.fields() == b"x-request-id: me\r\n"


@pytest.mark.parametrize("odd", [b"\xff", "é".encode(), b"a\tb", b"a\x7f"])
def test_headers_that_servers_read_differently_go_nowhere(odd: bytes) -> None:
    """A worker that fails at them would be charged with what a client sends."""
    names = (b"x-request-id", b"authorization", b"traceparent", b"tracestate")
    call = ClientRequest("/v1/chat/completions", dict.fromkeys(names, odd), b"")
    assert odd not in call.fields()
    assert call.request_id.isalnum() and call.fields() == b"x-request-id: %b\r\n" % call.request_id
    asked = Request({"type": "http", "headers": [(b"authorization", odd)]})
    assert "authorization" not in for_worker(asked, keyed=False)


def test_a_clients_key_goes_on_to_a_tokenizer() -> None:
    asked = Request({"type": "http", "headers": [(b"authorization", b"Bearer x")]})
    assert for_worker(asked, keyed=False)["authorization"] == "Bearer x"
    assert "authorization" not in for_worker(asked, keyed=True)
    nothing = Request({"type": "http", "headers": []})
    assert set(for_worker(nothing, keyed=False)) == {"x-request-id"}


def test_a_client_may_shorten_its_deadline() -> None:
    def timeout_s(value: bytes) -> float:
        return ClientRequest("/", {b"x-request-timeout": value}, b"").timeout_s(60.0)

    assert ClientRequest("/", {}, b"").timeout_s(60.0) == 60.0
    assert timeout_s(b"1.5") == 1.5
    assert timeout_s(b"1e9") == 60.0
    for bad in (b"", b"soon", b"0", b"-1", b"nan"):
        with pytest.raises(InvalidRequest):
            timeout_s(bad)
