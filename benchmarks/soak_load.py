"""The clients of a soak: mixed questions about pictures, some of them given up half-way."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from benchmarks.pictures import Question, sample

KINDS = ("describe", "count", "text", "one_of_two", "position", "text")
TIMEOUT_S = 120.0
MAX_TOKENS = 32
_POOL = 24  # questions that are asked again and again
_FRESH = 0.4  # share of questions that were never asked before
_ABORTED = 0.15
_PAUSE_S = 0.1  # on average, between two requests of a client


@dataclass(frozen=True)
class Outcome:
    """A request from its sending to its end, in monotonic seconds. `verdict` is "right" (as the
    first time, or new), "wrong", "aborted" (by the client) or "failed", with what it got."""

    kind: str
    began: float
    ended: float
    verdict: str
    status: int = 0
    code: str = ""
    detail: str = ""


class Failure(Exception):
    """What a client gets instead of an answer; `code` is empty unless it is one of ours."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(detail)
        self.outcome = {"status": status, "code": code, "detail": detail[:300]}


@dataclass
class Load:
    """Clients that ask until stopped; what became of every request, in `outcomes`."""

    port: int
    seed: int
    outcomes: list[Outcome] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._fresh = itertools.count(1000)
        self._pool = [sample(KINDS[i % len(KINDS)], self.seed * _POOL + i) for i in range(_POOL)]
        self._answers: dict[int, str] = {}
        self._threads: list[threading.Thread] = []

    def learn(self) -> None:
        """Ask each question of the pool once: these answers are the right ones."""
        for index, question in enumerate(self._pool):
            self._answers[index] = self._ask(question, stream=bool(index % 2))

    def start(self, clients: int) -> None:
        self._threads = [
            threading.Thread(
                target=self._client, args=(random.Random(self.seed * 1000 + n),), daemon=True
            )
            for n in range(clients)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self.stopping.set()
        for thread in self._threads:
            thread.join()

    def _client(self, chance: random.Random) -> None:
        while not self.stopping.is_set():
            began = time.monotonic()
            kind, verdict, got = self._one(chance)
            self.outcomes.append(Outcome(kind, began, time.monotonic(), verdict, **got))
            self.stopping.wait(chance.random() * 2 * _PAUSE_S)

    def _one(self, chance: random.Random) -> tuple[str, str, dict[str, Any]]:
        index = None if chance.random() < _FRESH else chance.randrange(_POOL)
        if index is None:
            question = sample(chance.choice(KINDS), next(self._fresh))
        else:
            question = self._pool[index]
        stream = chance.random() < 0.5
        try:
            if chance.random() < _ABORTED:
                self._give_up(question, stream, chance)
                return question.kind, "aborted", {}
            answer = self._ask(question, stream)
        except Failure as failure:
            return question.kind, "failed", failure.outcome
        wanted = answer if index is None else self._answers[index]
        if answer == wanted and answer:
            return question.kind, "right", {}
        return question.kind, "wrong", {"detail": f"{answer!r} instead of {wanted!r}"}

    def _ask(self, question: Question, stream: bool) -> str:
        with self._sent(question, stream) as connection:
            try:
                response = connection.getresponse()
                if response.status != 200:
                    raise _refusal(response)
                return _streamed(response) if stream else _whole(response)
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise Failure(0, "", f"{type(error).__name__}: {error}") from None

    def _give_up(self, question: Question, stream: bool, chance: random.Random) -> None:
        """Leave after a moment, or after some of the stream."""
        with self._sent(question, stream) as connection:
            self.stopping.wait(chance.random() * 0.5)
            if not stream or chance.random() < 0.5:
                return
            try:
                response = connection.getresponse()
                if response.status != 200:
                    raise _refusal(response)
                for _ in range(chance.randrange(1, 12)):
                    response.readline()
            except (OSError, http.client.HTTPException) as error:
                raise Failure(0, "", f"{type(error).__name__}: {error}") from None

    @contextlib.contextmanager
    def _sent(self, question: Question, stream: bool) -> Iterator[http.client.HTTPConnection]:
        body = {
            "model": "models/demo", "messages": question.openai_messages(), "temperature": 0,
            "max_tokens": MAX_TOKENS, "stream": stream,
        }  # fmt: skip
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        with contextlib.closing(connection):
            try:
                headers = {"content-type": "application/json"}
                connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
            except OSError as error:
                raise Failure(0, "", f"{type(error).__name__}: {error}") from None
            yield connection


def _refusal(response: http.client.HTTPResponse) -> Failure:
    text = response.read().decode(errors="replace")
    try:
        error = json.loads(text)["error"]
        return Failure(response.status, str(error["code"]), str(error["message"]))
    except (ValueError, KeyError, TypeError):
        return Failure(response.status, "", text)


def _whole(response: http.client.HTTPResponse) -> str:
    return str(json.loads(response.read())["choices"][0]["message"]["content"])


def _streamed(response: http.client.HTTPResponse) -> str:
    parts: list[str] = []
    for line in response:
        if not line.startswith(b"data: "):
            continue
        if line.strip() == b"data: [DONE]":
            return "".join(parts)
        event = json.loads(line[6:])
        if "error" in event:
            error = event["error"]
            raise Failure(200, str(error.get("code") or ""), str(error.get("message")))
        parts += [c["delta"].get("content") or "" for c in event["choices"]]
    raise Failure(200, "", "the stream ended without its end mark")
