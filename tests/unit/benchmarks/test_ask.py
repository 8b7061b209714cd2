"""`benchmarks.ask` against servers with known answers: a miss is shown, an error ends it."""

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest

from benchmarks.ask import main
from benchmarks.common.pictures import sample


@contextmanager
def serving(chat: Any, status: int = 200) -> Iterator[str]:
    """A server with one model that answers every chat with `chat`; gives its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(200, {"data": [{"id": "m"}]})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self._answer(status, chat)

        def _answer(self, status: int, body: Any) -> None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def completion(content: str | None) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": content}}]}


def test_a_null_content_is_a_miss(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(completion(None)) as url:
        assert main(["--base-url", url, "--kinds", "background", "--seed", "1"]) == 0
    assert "Answer:   (no text)   [expected: The background is " in capsys.readouterr().out


def test_a_true_answer_in_other_words_is_true(capsys: pytest.CaptureFixture[str]) -> None:
    question = sample("background", random.Random(1).randrange(1 << 30))
    ground = question.answer.split()[-1].rstrip(".")
    with serving(completion(f"It is\n**{ground}**\x1b[2J.")) as url:
        assert main(["--base-url", f"{url}/", "--kinds", "background", "--seed", "1"]) == 0
    assert f"Answer:   It is **{ground}** [2J.   [true]" in capsys.readouterr().out


def test_a_long_answer_is_cut_between_words(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(completion("a " * 1000 + "z" * 1000)) as url:
        assert main(["--base-url", url, "--kinds", "count"]) == 0
    answer = capsys.readouterr().out.splitlines()[1]
    assert answer.startswith("Answer:   a a a")
    assert " a ...   [expected: " in answer
    assert len(answer) < 400


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (503, {"error": {"message": "no worker is up"}}, "HTTP 503: no worker is up"),
        (500, b"", "HTTP 500: Internal Server Error"),
        (502, b"<h1>Bad gateway</h1>", "HTTP 502: <h1>Bad gateway</h1>"),
        (200, b"hello", "JSONDecodeError"),
        (200, {"choices": []}, "not an answer of the OpenAI API"),
        (200, [], "not an answer of the OpenAI API"),
    ],
)
def test_an_answer_that_is_none_ends_with_its_words(
    status: int, body: Any, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(body, status) as url:
        assert main(["--base-url", url]) == 1
    shown = capsys.readouterr()
    assert shown.err.startswith(f"error: {url}")
    assert words in shown.err
    assert "Question" not in shown.out


def test_a_kind_that_is_not_known_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--kinds", "count,smell"])
    assert "'smell' is none of describe, count" in capsys.readouterr().err
