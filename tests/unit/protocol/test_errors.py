"""What clients are told of what went wrong in the fleet."""

import errno
import socket
import time

import msgspec
import pytest

from protocol.errors import (
    ConfigError,
    DeadlineExceeded,
    ErrorInfo,
    InternalError,
    InvalidRequest,
    ModelNotFound,
    PayloadTooLarge,
    RateLimited,
    RequestAborted,
    TransferError,
    TriptychError,
    Unauthorized,
    Unavailable,
    UnsupportedMedia,
    UpstreamError,
    error_info,
    from_info,
    from_openai,
    from_worker,
)
from protocol.shortage import is_own_shortage
from proxy.upstream.answer import Answer
from proxy.upstream.client import raise_for_status
from proxy.upstream.failures import Refused
from services.http.errors import error_response
from tests.support.shortage import no_files_left

HTTP_404, UPSTREAM = "worker answered HTTP 404", "upstream_error"
NAMES = ("10.0.0.7", "8001", "decode-1", "fd00", "3f2a" * 8, "/inference", "master")
MESSAGES = {
    "http://10.0.0.7:8001/inference/v1/generate: no answer in time": "a worker: no answer in time",
    "https://decode-1.fleet:8001 cannot be reached: Connection refused":
        "a worker cannot be reached: Connection refused",
    "http://[fd00::7]:8001: the stream ended early": "a worker: the stream ended early",
    "master http://decode-1:8001: it is away": "a worker: it is away",
    "the peer at 10.0.0.7:8001 did not answer": "the peer at a worker did not answer",
    "the peer at [fd00::7]:8001 is gone": "the peer at a worker is gone",
    f"instance {'3f2a' * 8} has left decode-1:8001": "an instance has left a worker",
    "the stream ended early": "the stream ended early",
}  # fmt: skip


@pytest.mark.parametrize(("message", "told"), MESSAGES.items())
def test_they_hear_what_happened_and_not_where(message: str, told: str) -> None:
    for error in (UpstreamError(message), TransferError(message), TriptychError(message)):
        assert error.to_openai()["error"]["message"] == told
        assert not any(name in told for name in NAMES)
        assert error.message == message, "the log has all of it"


def test_their_own_words_are_given_back() -> None:
    message = "messages[0]: https://their.example:8443/cat.png has no picture"
    assert InvalidRequest(message).to_openai()["error"]["message"] == message


WORDS = {
    "http://10.0.0.1:99/ secret": "an address secret",
    "the peer at decode-1:8001 has no such token": "the peer at an address has no such token",
    f"instance {'3f2a' * 8} serves m": "an instance serves m",
    "max_tokens: line 3:15 has '70000' at [1:20]": "max_tokens: line 3:15 has '70000' at [1:20]",
}


@pytest.mark.parametrize(("message", "told"), WORDS.items())
@pytest.mark.parametrize("status", [400, 404, 429])
def test_nor_do_they_hear_it_in_a_workers_word_of_their_request(
    message: str, told: str, status: int
) -> None:
    body = {"error": {"message": message, "code": status}}
    errors = (
        from_openai(status, body),
        from_worker(ErrorInfo(status, message, "x")),
        Refused("http://w:1", Answer(status, b"application/json", msgspec.json.encode(body))),
    )
    assert {error.to_openai()["error"]["message"] for error in errors} <= {told}


@pytest.mark.parametrize(
    "said", ["a-" * 200_000, "a." * 200_000 + ":1", "[" * 400_000, "http://" * 99_000]
)
def test_a_message_of_any_length_takes_no_time(said: str) -> None:
    start = time.thread_time()
    assert len(UpstreamError(said).to_openai()["error"]["message"]) < 20_000
    Refused("http://w:1", Answer(400, b"text/plain", said.encode())).told()
    assert time.thread_time() - start < 5.0  # twice through its square would be minutes


STATUSES = {
    InvalidRequest: (400, "invalid_value"), Unauthorized: (401, "invalid_api_key"),
    ModelNotFound: (404, "model_not_found"), PayloadTooLarge: (413, "payload_too_large"),
    UnsupportedMedia: (415, "unsupported_media"), RateLimited: (429, "rate_limit_exceeded"),
    RequestAborted: (499, "aborted"), InternalError: (500, "internal_error"),
    UpstreamError: (502, "upstream_error"), Unavailable: (503, "unavailable"),
    DeadlineExceeded: (504, "deadline_exceeded"), TransferError: (503, "transfer_failed"),
}  # fmt: skip


@pytest.mark.parametrize("kind", STATUSES)
def test_each_error_has_its_status_and_code_and_comes_back_as_itself(
    kind: type[TriptychError],
) -> None:
    status, code = STATUSES[kind]
    error = kind("what", param="where")
    info = error_info(error)
    assert (info.status, info.code, info.param, info.message) == (status, code, "where", "what")
    again = from_info(info)
    assert (again.status, again.code, again.param) == (status, code, "where")
    assert isinstance(again, kind) or kind in (InternalError, TransferError)


def test_an_error_of_the_configuration_comes_back_as_one() -> None:
    again = from_info(error_info(ConfigError("no such model")))
    assert isinstance(again, ConfigError) and again.message == "no such model"


def test_what_is_no_error_of_ours_is_internal_and_named() -> None:
    info = error_info(ValueError("odd"))
    assert (info.status, info.code, info.message) == (500, "internal_error", "ValueError: odd")


def test_a_status_that_is_not_known_is_the_workers_failure() -> None:
    assert isinstance(from_info(ErrorInfo(418, "tea", "x")), UpstreamError)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"error": {"message": "m", "code": "c", "param": "p"}}, ("m", "c", "p")),
        ({"error": {"message": "", "code": 7, "param": []}}, (HTTP_404, UPSTREAM, None)),
        ({"error": "no object"}, (HTTP_404, UPSTREAM, None)),
        (["no object"], (HTTP_404, UPSTREAM, None)),
    ],
)
def test_any_answer_of_another_process_is_read(body: object, told: object) -> None:
    error = from_openai(404, body)
    assert (error.message, error.code, error.param) == told and error.status == 404


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS])
def test_a_shortage_is_our_own(number: int) -> None:
    assert is_own_shortage(OSError(number, ""))


@pytest.mark.parametrize("number", [errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTUNREACH])
def test_a_refusal_is_the_others(number: int) -> None:
    assert not is_own_shortage(OSError(number, ""))
    assert not is_own_shortage(TimeoutError()) and not is_own_shortage(None)


def test_a_name_that_cannot_be_looked_up_without_files_is_our_own() -> None:
    unknown = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    assert not is_own_shortage(unknown)
    with no_files_left():
        assert is_own_shortage(unknown)


@pytest.mark.parametrize(
    ("given", "told"),
    [(float("9" * 400), 3600.0), (float("nan"), None), (-5.0, 0.0), (1e9, 3600.0), (2.5, 2.5),
     (None, None)],
)  # fmt: skip
def test_a_wait_is_bounded(given: float | None, told: float | None) -> None:
    error = Unavailable("full", retry_after_s=given)
    assert error.retry_after_s == told
    error = Unavailable("full", retry_after_s=1.0)
    error.retry_after_s = given
    assert error.retry_after_s == told
    assert 1 <= int(error_response(error).headers.get("retry-after", "1")) <= 3600


@pytest.mark.parametrize("after", ["9" * 400, "-1", "nan", "inf", "٣", "soon", ""])
def test_a_wait_of_a_worker_is_bounded_too(after: str) -> None:
    with pytest.raises(Unavailable) as caught:
        raise_for_status("http://w:1", 503, b'{"error":{"message":"full"}}', after, called=True)
    assert 1 <= int(error_response(caught.value).headers.get("retry-after", "1")) <= 3600
