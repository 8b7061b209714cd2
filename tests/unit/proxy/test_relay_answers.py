"""What the relay makes of the answers of each stage."""

import json
from typing import Any

import pytest

from proxy.relay.request_state import with_cached_tokens
from proxy.relay.response_validation import (
    check_stream,
    check_whole,
    encoded,
    going_on,
    prefilled,
)
from proxy.upstream.answer import Answer
from proxy.upstream.failures import CallFailed, Refused, failure_of


def answer(body: Any, status: int = 200, kind: bytes = b"application/json", **more: Any) -> Answer:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Answer(status, kind, data, **more)


GOOD = {"choices": [{"index": 0, "message": {"content": "x"}}]}


def test_good_answers_are_read() -> None:
    check_whole("u", answer(GOOD, kind=b"application/json; charset=utf-8"))
    assert prefilled("u", answer({**GOOD, "kv_transfer_params": {"p": 1}})).handed == {"p": 1}
    assert prefilled("u", answer({**GOOD, "kv_transfer_params": None})).handed is None
    assert prefilled("u", answer(GOOD)).handed is None
    assert encoded("u", answer({**GOOD, "ec_transfer_params": {"h": {}}})) == {"h": {}}
    event = b': hi\n\ndata: {"choices":[]}\n\n'
    check_stream("u", answer(event, kind=b"text/event-stream; charset=utf-8"))


@pytest.mark.parametrize(
    ("usage", "count"),
    [
        ({"prompt_tokens_details": {"cached_tokens": 16}}, 16),
        ({"prompt_tokens_details": {"cached_tokens": 0}}, 0),
        ({"prompt_tokens_details": {"cached_tokens": "16"}}, None),
        ({"prompt_tokens_details": {"cached_tokens": -1}}, None),
        ({"prompt_tokens_details": None}, None),
        ({"prompt_tokens_details": 16}, None),
        ("nonsense", None),
        (None, None),
    ],
)
def test_what_prefill_found_cached(usage: Any, count: int | None) -> None:
    assert prefilled("u", answer({**GOOD, "usage": usage})).cached_tokens == count


def test_a_count_is_replaced_in_usage_and_not_in_texts() -> None:
    said = {"content": '{"cached_tokens": 30}', "usage": {"cached_tokens": 31, "prompt_tokens": 31}}
    for data in (json.dumps(said), json.dumps(said, indent=2), json.dumps(said).replace(": ", ":")):
        changed = json.loads(with_cached_tokens(data.encode(), 7))
        assert changed["usage"] == {"cached_tokens": 7, "prompt_tokens": 31}
        assert json.loads(changed["content"]) == {"cached_tokens": 30}
    assert with_cached_tokens(b'{"cached_tokens":null}', 7) == b'{"cached_tokens":null}'


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        (answer(b"<html>"), "garbage"),
        (answer(json.dumps(GOOD).encode()[:-5]), "garbage"),
        (answer({}), "garbage"),
        (answer([]), "garbage"),
        (answer({"choices": None}), "garbage"),
        (answer({**GOOD, "kv_transfer_params": "yes"}), "garbage"),
        (answer(GOOD, kind=b"text/html"), "wrong_type"),
        (answer(GOOD, kind=b""), "wrong_type"),
    ],
)
def test_nonsense_is_told_from_answers(bad: Answer, kind: str) -> None:
    with pytest.raises(CallFailed) as caught:
        prefilled("u", bad)
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    ("body", "content_type", "kind"),
    [
        (b'data: {"choices":\n\n', b"text/event-stream", "garbage"),
        (b'data: {"hello":1}\n\n', b"text/event-stream", "garbage"),
        (b"data: [DONE]\n\n", b"text/event-stream", "cut_short"),
        (json.dumps(GOOD).encode(), b"application/json", "wrong_type"),
    ],
)
def test_streams_that_begin_wrongly(body: bytes, content_type: bytes, kind: str) -> None:
    with pytest.raises(CallFailed) as caught:
        check_stream("u", answer(body, kind=content_type))
    assert caught.value.kind == kind


def test_an_error_as_first_event_is_an_error() -> None:
    body = b'data: {"error":{"message":"too long","code":400}}\n\n'
    with pytest.raises(Refused) as caught:
        check_stream("u", answer(body, kind=b"text/event-stream"))
    assert not caught.value.again and caught.value.answer.status == 400


def test_what_an_error_answer_means() -> None:
    client = Refused("u", answer({"error": {"message": "bad"}}, 400))
    assert not client.again and not failure_of(client).charged
    busy = Refused("u", answer({"error": {"message": "full"}}, 503, retry_after=b"7"))
    assert busy.again and not failure_of(busy).charged
    assert (busy.status, busy.code, busy.retry_after_s) == (503, "unavailable", 7.0)
    broken = Refused("u", answer(b"oops", 500))
    assert broken.again and failure_of(broken).charged
    assert (broken.status, broken.code) == (502, "upstream_error")


def ended(reason: str | None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"content": "abort"}, "finish_reason": reason}
    return {"choices": [{"index": 1, "finish_reason": "stop"}, choice], **more}


def event(body: Any) -> bytes:
    return b"data: %b\n\n" % json.dumps(body, separators=(",", ":")).encode()


GIVEN_UP = {
    "abort": (ended("abort"), "aborted"),
    "error": (ended("error"), "aborted"),
    "words": (ended("stop", error="it broke"), "500"),
    "an error of its own": (ended("stop", error={"message": "it broke", "code": 500}), "500"),
}


@pytest.mark.parametrize(("said", "kind"), GIVEN_UP.values(), ids=GIVEN_UP)
def test_an_answer_that_the_worker_gave_up_is_none(said: Any, kind: str) -> None:
    for check in (check_whole, prefilled, encoded):
        with pytest.raises((CallFailed, Refused)) as caught:
            check("u", answer(said))
        failure = failure_of(caught.value)
        assert failure.kind == kind and failure.charged and failure.retry
    begun = event(ended(None)) + event(said)
    with pytest.raises((CallFailed, Refused)) as caught:
        check_stream("u", answer(begun, kind=b"text/event-stream"))
    assert failure_of(caught.value).kind == kind


@pytest.mark.parametrize(("said", "kind"), GIVEN_UP.values(), ids=GIVEN_UP)
def test_what_came_before_a_stream_was_given_up_goes_on(said: Any, kind: str) -> None:
    shown: list[bytes] = []
    good = event(ended(None)) + b": hi\n\n"
    with pytest.raises((CallFailed, Refused)) as caught:
        going_on("u", shown.append)(good + event(said) + good)
    assert failure_of(caught.value).kind == kind and shown == [good]


def test_a_later_error_of_the_clients_own_is_judged_as_a_first_one() -> None:
    said = {"message": "too long", "code": 400}
    good, bad = event(ended(None)), event({"error": said})
    stream = answer(good + bad, kind=b"text/event-stream")
    for check, given in (
        (check_whole, answer(ended("stop", error=said))),
        (check_stream, stream),
        (check_stream, stream._replace(body=bad)),
    ):
        with pytest.raises(Refused) as caught:
            check("u", given)
        failure = failure_of(caught.value)
        assert (failure.retry, failure.charged, caught.value.status) == (False, False, 400)
        # It may be all that the client gets.
        assert json.loads(caught.value.answer.body) == {"error": said}
    with pytest.raises(Refused):
        going_on("u", lambda events: None)(bad)


def test_texts_about_it_are_no_end() -> None:
    said = [{"choices": [{"text": word, "finish_reason": None}]} for word in ("abort", "error")]
    quoted = {"choices": [{"text": '"finish_reason":"abort"', "finish_reason": "stop"}]}
    data = b"".join(map(event, (*said, quoted, ended(None, error=None)))) + b"data: [DONE]\n\n"
    shown: list[bytes] = []
    going_on("u", shown.append)(data)
    check_stream("u", answer(data, kind=b"text/event-stream"))
    check_whole("u", answer(ended("stop", error=None)))
    assert shown == [data]
