"""What the relay notes of a stream that it may have to resume, and what a client sees of that."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from proxy.relay.resume.continuation import Continuation
from proxy.relay.resume.progress import DONE, Chunks, Progress
from proxy.relay.resume.recorder import Recorder
from proxy.upstream.failures import CallFailed, Refused, failure_of
from proxy.upstream.sse import EventCutter, data_of, events_of
from tests.support.greedy_workers import Greedy
from tests.support.relay_workers import CHAT, Asked

BODY = {"messages": [{"content": "case 9"}], "max_tokens": 16}
BODY["stream_options"] = {"include_usage": True}
HEAD = {"id": "i", "object": "chat.completion.chunk", "created": 1, "model": "m"}


def stream(**more: Any) -> list[bytes]:
    asked = Asked(CHAT, {"x-request-id": "me"}, {**BODY, **more}, 0)
    return list(Greedy("decode", created=1).chat(asked))


def tapped(pieces: Iterator[bytes], asked: bool = False) -> tuple[bytes, Progress]:
    shown: list[bytes] = []
    tap, cutter = Recorder("w", shown.append, asked=asked), EventCutter()
    for piece in pieces:
        if data := cutter.feed(piece):
            tap.feed(data)
    return b"".join(shown), tap.progress


def test_a_tapped_stream_looks_as_if_no_ids_were_asked_for() -> None:
    """However its bytes arrive, also where its text looks like what is taken out."""
    given, plain = b"".join(stream(return_token_ids=True)), b"".join(stream())
    assert rb"\"token_ids\":[1]" in plain
    for place in range(len(given) + 1):
        shown, progress = tapped(iter((given[:place], given[place:])))
        assert shown == plain
    assert tapped(bytes([byte]) for byte in given) == (plain, progress)
    assert tapped(iter((given,)), asked=True) == (given, progress)
    assert progress.prompt == [100 + byte for byte in b"case 9"]
    assert len(progress.tokens) == progress.sure == 16 and progress.since == ""
    assert (progress.finish, progress.counted, progress.exact) == ("length", True, True)
    assert progress.head == {**HEAD, "id": "chatcmpl-me"}


def test_a_stream_without_ids_passes_untouched() -> None:
    """Also what would be taken out of one with ids, and once ids come after all they are."""
    plain = chunk({}).replace(b',"token_ids":null', b"")
    late = chunk({"content": "a"}, [1])
    shown: list[bytes] = []
    recorder = Recorder("w", shown.append, asked=False)
    for data in (b"".join(stream()), plain, late):
        recorder.feed(data)
    assert not recorder.progress.exact
    assert shown[1:] == [plain, chunk({"content": "a"})]


def chunk(delta: Any, ids: list[int] | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": None, "token_ids": ids}
    data = {**HEAD, "choices": [{**choice, **more}]}
    return b"data: %b\n\n" % json.dumps(data, separators=(",", ":")).encode()


PROMPT = b',"prompt_token_ids":[5]}\n\n'
FIRST = chunk({"role": "assistant", "content": ""}).replace(b"}\n\n", PROMPT)


def noted(*events: bytes) -> Progress:
    return tapped(iter((FIRST, *events)))[1]


def test_text_is_sure_only_after_a_token_that_came_alone() -> None:
    one, held = chunk({"content": "a"}, [1]), chunk({"content": ""}, [2])
    many = chunk({"content": "bc"}, [3, 4])
    states = [
        noted(*events) for events in ([one], [one, held], [one, held, many], [one, many, one])
    ]
    assert [(p.sure, p.since) for p in states] == [(1, ""), (1, ""), (1, "bc"), (4, "")]
    assert [p.tokens for p in states][2:] == [[1, 2, 3, 4], [1, 3, 4, 1]]


@pytest.mark.parametrize(
    "odd",
    [
        chunk({"reasoning": "hm"}, [1]),
        chunk({"content": "x"}, None),
        chunk({"content": 3}, [1]),
        chunk({"content": "x"}, [1], index=1),
        chunk(None, [1]),
        chunk({"tool_calls": [{}]}, [1]),
        chunk({"content": "x"}, [1]).replace(b'"choices"', b'"usage":{},"choices"'),
        b'data: {"choices":[{},{}]}\n\n',
        b"data: [1]\n\n",
    ],
)
def test_what_is_not_understood_goes_on_but_is_not_resumed(odd: bytes) -> None:
    shown, progress = tapped(iter((FIRST, odd, chunk({"content": "y"}, [7]), DONE)))
    assert not progress.resumable
    parts = shown.split(b"\n\n")
    assert len(parts) == 5 and parts[-2] == DONE.strip()
    assert b"[7]" not in shown and b"[5]" not in shown


def test_a_stream_without_the_prompts_ids_is_not_resumed() -> None:
    assert not tapped(iter((chunk({"role": "assistant"}),)))[1].resumable


def test_a_delta_that_tells_token_ids_only_is_hidden() -> None:
    """As a worker that parses would not have sent it."""
    silent = chunk({}, [3])
    assert tapped(iter((FIRST, silent)))[0].count(b"data: ") == 1
    assert tapped(iter((FIRST, silent)), asked=True)[0].count(b"data: ") == 2
    assert noted(silent).tokens == [3]


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        (b"data: {nonsense}\n\n", "garbage"),
        (b'data: {"choices":\n\n', "garbage"),
        (b'data: {"x":%b\n\n' % (b"[" * 100_000), "garbage"),
        (DONE, "cut_short"),
    ],
)
def test_what_ends_a_stream_too_early_is_not_shown(bad: bytes, kind: str) -> None:
    shown: list[bytes] = []
    tap = Recorder("w", shown.append, asked=True)
    good = chunk({"content": "a"}, [1])
    with pytest.raises(CallFailed) as failure:
        tap.feed(FIRST + good + bad + good)
    assert failure.value.kind == kind and b"".join(shown) == FIRST + good
    assert ("an event that is not valid JSON: " in failure.value.message) == (kind == "garbage")


def test_events_one_by_one() -> None:
    data = b': hi\n\ndata: {"a":1}\r\n\r\nevent: x\ndata: 1\ndata: 2\n\ndata:[DONE]\n\n'
    events = events_of(data)
    assert b"".join(events) == data
    assert [data_of(event) for event in events] == [b"", b'{"a":1}', b"1\n 2", b"[DONE]"]
    assert events_of(b"data: 1\n\n") == [b"data: 1\n\n"]


def piece(text: str, ids: list[int], finish: str | None = None) -> bytes:
    choice = {"index": 0, "text": text, "token_ids": ids, "finish_reason": finish}
    return b"data: %b\n\n" % json.dumps({"choices": [choice]}).encode()


def continued(progress: Progress, *events: bytes) -> list[Any]:
    shown: list[bytes] = []
    chunks = Chunks(HEAD, True, False, "f")
    Continuation("w", progress, chunks, shown.append).feed(b"".join(events))
    found = [json.loads(data_of(event)) for event in events_of(b"".join(shown))]
    return [
        (c["delta"]["content"], c["token_ids"], c["finish_reason"])
        for each in found
        for c in each["choices"]
    ]


def broken() -> Progress:
    """Two tokens, and then three that came together with the text of the first two of them."""
    return Progress(HEAD, [5], [1, 2, 3, 4, 6], 2, "cd")


def test_what_the_client_has_had_is_not_told_again() -> None:
    progress = broken()
    again = (piece("c", [3]), piece("de", [4, 6, 7]), piece("", [0], "stop"), DONE)
    assert continued(progress, *again) == [("e", [7], None), ("", [0], "stop")]
    assert progress.tokens == [1, 2, 3, 4, 6, 7, 0] and progress.finish == "stop"
    alone = broken()
    assert continued(alone, piece("cd", [3, 4]), piece("", [6]), piece("é", [8])) == [
        ("é", [8], None)
    ]
    assert (alone.sure, alone.since) == (6, "")


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        ([piece("c", [9])], "diverged"),
        ([piece("x", [3])], "diverged"),
        ([piece("c", [3]), piece("dz", [4, 7])], "diverged"),
        ([piece("cd", [3, 4, 6]), DONE], "cut_short"),
        ([b'data: {"error":{"message":"dead"}}\n\n'], "500"),
        ([b'data: {"error":{"message":"too long","code":400}}\n\n'], "400"),
        ([b"data: {nonsense}\n\n"], "garbage"),
        ([b'data: {"choices":[{"token_ids":[3]}]}\n\n'], "garbage"),
        ([piece("", [3, 4, 6], "length"), piece("x", [9])], "diverged"),
        ([piece("", [], "abort"), DONE], "aborted"),
        ([piece("c", [3], "error"), DONE], "aborted"),
    ],
)
def test_a_continuation_that_is_none(events: list[bytes], kind: str) -> None:
    with pytest.raises((CallFailed, Refused)) as caught:
        continued(broken(), *events)
    failure = failure_of(caught.value)
    assert (failure.kind, failure.charged) == (kind, kind != "400")
    assert ("an event that is not valid: " in caught.value.message) == (kind == "garbage")


def test_chunks_are_written_as_vllm_writes_them() -> None:
    chunks = Chunks(HEAD, False, True, "f")
    start = b'data: {"id":"i","object":"chat.completion.chunk","created":1,"model":"m","choices":['
    assert chunks.delta('é"\n\u2028', [1], None, None) == start + (
        '{"index":0,"delta":{"content":"é\\"\\n\u2028"},"logprobs":null,"finish_reason":null,'
        '"token_ids":null}]}\n\n'
    ).encode()  # fmt: skip
    assert chunks.counts(3, 4) == start + (
        b'],"usage":{"prompt_tokens":3,"total_tokens":7,"completion_tokens":4},'
        b'"system_fingerprint":"f"}\n\n'
    )
    assert Chunks(HEAD, True, False, "f").delta("", [2], "stop", 9) == start + (
        b'{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":"stop","stop_reason":9,'
        b'"token_ids":[2]}],"system_fingerprint":"f"}\n\n'
    )
