"""What clients are told of what went wrong in the fleet."""

import pytest

from protocol.errors import InvalidRequest, TransferError, TriptychError, UpstreamError

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
