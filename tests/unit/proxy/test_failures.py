"""What a failed call says, and whom it speaks against."""

from protocol.errors import (
    DeadlineExceeded,
    EmbeddingLost,
    InternalError,
    NotServing,
    TransferError,
    TriptychError,
    Unavailable,
    UpstreamError,
)
from proxy.upstream.answer import Answer
from proxy.upstream.failures import Refused, failure_of


def told(status: int, body: bytes) -> Refused:
    return Refused("http://w:1", Answer(status, b"application/json", body))


def test_what_errors_say_of_whom() -> None:
    charged: list[TriptychError] = [UpstreamError("x"), InternalError("x"), told(500, b"{}")]
    assert all(failure_of(error).charged for error in charged)
    free: list[TriptychError] = [
        Unavailable("x"), TransferError("x"), EmbeddingLost("x"), DeadlineExceeded("x"),
        told(503, b"{}"), told(429, b"{}"),
    ]  # fmt: skip
    assert not any(failure_of(error).charged for error in free)
    assert all(failure_of(error).retry for error in charged + free)
    assert not failure_of(told(400, b'{"error": {"message": "bad"}}')).retry


def test_an_address_that_is_no_worker_any_more_fails_and_not_the_client() -> None:
    for status in (404, 405):
        failure = failure_of(told(status, b"<html>"))
        assert (failure.retry, failure.charged, failure.kind) == (True, True, "not_a_worker")
    unknown = told(404, b'{"error": {"message": "the model does not exist", "code": 404}}')
    assert not failure_of(unknown).retry


def test_a_worker_that_says_that_it_stops_is_gone() -> None:
    told_so = told(503, b'{"error": {"message": "no more", "code": "not_serving"}}')
    assert failure_of(told_so).gone and failure_of(NotServing("no more")).gone
    assert not failure_of(Unavailable("full")).gone
