"""Requests that a web page can have sent from somebody's browser."""

from typing import Any

import pytest

from protocol.server_options import CorsOptions
from services.http.browsers import cors_headers, for_browsers, is_structured

JSON = (b"content-type", b"application/json")
FORM = (b"content-type", b"application/x-www-form-urlencoded")
PLAIN = (b"content-type", b"text/plain;charset=UTF-8")
BODY = (b"content-length", b"2")
PAGE, HOST = (b"origin", b"https://page.example"), (b"host", b"127.0.0.1:8000")

NO_PAGES = CorsOptions()


@pytest.mark.parametrize(
    ("content_type", "taken"),
    [(b"application/json", True), (b"Application/JSON; charset=utf-8", True),
     (b"application/vnd.api+json", True), (b"application/msgpack", True), (b"", False),
     (b"text/plain", False), (b"text/plain; application/json", False), (b"text/json", False),
     (b"multipart/form-data; boundary=+json", False), (b"application/jsonp", False)],
)  # fmt: skip
def test_bodies_that_are_taken(content_type: bytes, taken: bool) -> None:
    assert is_structured(content_type) == taken


async def answer(
    method: str,
    *headers: tuple[bytes, bytes],
    options: CorsOptions = NO_PAGES,
    path: str = "/drain",
) -> tuple[int, dict[bytes, bytes]]:
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("nothing is read")

    scope = {"type": "http", "method": method, "path": path, "headers": list(headers)}
    await for_browsers(app, options)(scope, receive, send)
    return sent[0]["status"], dict(sent[0]["headers"])


REQUESTS: dict[str, tuple[int, str, tuple[tuple[bytes, bytes], ...]]] = {
    "json": (200, "POST", (JSON, BODY)),
    "json of a page": (200, "POST", (JSON, BODY, PAGE)),
    "a form": (415, "POST", (FORM, BODY)),
    "text": (415, "POST", (PLAIN, BODY)),
    "a blob without a type": (415, "POST", (BODY,)),
    "chunks without a type": (415, "POST", ((b"transfer-encoding", b"chunked"),)),
    "no body": (200, "POST", ()),
    "an empty body": (200, "POST", ((b"content-length", b"0"),)),
    "no body from a page": (403, "POST", (PAGE, HOST)),
    "no body from nowhere": (403, "POST", ((b"origin", b"null"), HOST)),
    "no body from its own page": (200, "POST", ((b"origin", b"http://127.0.0.1:8000"), HOST)),
    "delete": (403, "DELETE", (PAGE, HOST)),
    "with a key of ours": (200, "POST", (FORM, BODY, (b"x-api-key", b"k"))),
    "get": (200, "GET", (PAGE, HOST)),
}


@pytest.mark.parametrize(("status", "method", "headers"), REQUESTS.values(), ids=REQUESTS.keys())
async def test_what_a_page_can_send_unasked_is_refused(
    status: int, method: str, headers: tuple[tuple[bytes, bytes], ...]
) -> None:
    assert (await answer(method, *headers))[0] == status


RECORDING = (b"content-type", b"multipart/form-data; boundary=x")


@pytest.mark.parametrize(
    ("status", "path", "headers"),
    [(200, "/v1/audio/transcriptions", (RECORDING, BODY)),
     (403, "/v1/audio/transcriptions", (RECORDING, BODY, PAGE, HOST)),
     (415, "/v1/audio/transcriptions", (PLAIN, BODY)),
     (415, "/v1/embeddings", (RECORDING, BODY))],
)  # fmt: skip
async def test_recordings_come_as_forms_but_from_no_page(
    status: int, path: str, headers: tuple[tuple[bytes, bytes], ...]
) -> None:
    assert (await answer("POST", *headers, path=path))[0] == status


ASKS = ((b"access-control-request-method", b"POST"),
        (b"access-control-request-headers", b"content-type"), PAGE)  # fmt: skip


async def test_pages_are_answered_if_a_flag_names_them() -> None:
    here = b"access-control-allow-origin"
    for origins in ('["https://page.example"]', "https://page.example", '["*"]'):
        options = CorsOptions(allowed_origins=origins)
        status, headers = await answer("OPTIONS", *ASKS, options=options)
        assert status == 200 and headers[here] in (b"*", PAGE[1])
        status, headers = await answer("POST", JSON, PAGE, options=options)
        assert status == 200 and here in headers
        assert (await answer("POST", PAGE, HOST, options=options))[0] == 200
    for options in (CorsOptions(), CorsOptions(allowed_origins="https://other.example")):
        assert here not in (await answer("POST", JSON, PAGE, options=options))[1]


def test_the_hot_path_says_the_same() -> None:
    page = PAGE[1]
    every = CorsOptions(allowed_origins='["*"]')
    assert dict(cors_headers(every, page))[b"access-control-allow-origin"] == b"*"
    assert cors_headers(every, b"") == ()
    one = CorsOptions(allowed_origins=page.decode(), allow_credentials=True)
    said = dict(cors_headers(one, page))
    assert said[b"access-control-allow-origin"] == page
    assert said[b"access-control-allow-credentials"] == b"true"
    assert cors_headers(one, b"https://other.example") == ()
