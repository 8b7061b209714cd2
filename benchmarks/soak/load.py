"""Clients under whom workers die: mixed questions about pictures, some given up half-way."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import random
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.common.pictures import Question, sample

KINDS = ("describe", "count", "text", "one_of_two", "position", "text")
TIMEOUT_S = 120.0
MAX_TOKENS = 32
_POOL = 24  # questions that are asked again and again
_PAUSE_S = 0.1  # on average, between two requests of a client


@dataclass(frozen=True)
class Outcome:
    """A request from its sending to its end, in monotonic seconds. `verdict` is "right" (as the
    first time, or new), "wrong", "aborted" (by the client) or "failed", with what it got."""

    port: int
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


@dataclass(frozen=True)
class Answer:
    """Of one choice: its text, its token ids and, if asked for, by how much each was likelier than
    the next best (a difference of logits)."""

    text: str
    tokens: tuple[int, ...]
    leads: tuple[float, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True)
class Asked:
    """What is sent: the parameters with the question."""

    question: Question
    params: tuple[tuple[str, Any], ...]

    def body(self, stream: bool) -> bytes:
        body = {
            "model": "models/demo", "messages": self.question.openai_messages(), "temperature": 0,
            "max_tokens": MAX_TOKENS, "return_token_ids": True, "stream": stream,
            **({"stream_options": {"include_usage": True}} if stream else {}), **dict(self.params),
        }  # fmt: skip
        return json.dumps(body).encode()


@dataclass
class Load:
    """Clients that ask until stopped, each at one of the `ports`; what became of every request, in
    `outcomes`. `fresh` is the share of questions that were never asked before, `aborted` that of
    requests given up. `length` above 0: so many tokens, every second question sampled by a seed.
    With a `tie` above 0 all is greedy, and an answer may go its own way where the right one's token
    leads by no more than that: `ties` are those leads."""

    ports: Sequence[int]
    seed: int
    fresh: float = 0.4
    aborted: float = 0.15
    length: int = 0
    tie: float = 0.0
    ties: list[float] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._numbers = itertools.count(1000)
        self._pool = [
            self._asked(KINDS[i % len(KINDS)], self.seed * _POOL + i) for i in range(_POOL)
        ]
        self._answers: dict[int, Answer] = {}
        self._new: list[tuple[Asked, Answer]] = []
        self._threads: list[threading.Thread] = []

    def _asked(self, kind: str, number: int) -> Asked:
        params: dict[str, Any] = {}
        if self.length:
            params = {"max_tokens": self.length, "ignore_eos": True}
        if self.tie:
            params |= {"logprobs": True, "top_logprobs": 2}
        elif self.length and number % 2:
            params |= {"temperature": 1.0, "seed": number}
        return Asked(sample(kind, number), tuple(params.items()))

    def learn(self) -> None:
        """Ask each question of the pool once: these answers are the right ones."""
        for index, asked in enumerate(self._pool):
            self._answers[index] = self._ask(self.ports[0], asked, stream=bool(index % 2))

    def check_new(self) -> int:
        """Ask the new questions once more, undisturbed: how many are answered otherwise."""
        new, self._new = self._new, []
        again = ((was, self._ask(self.ports[0], asked, stream=False)) for asked, was in new)
        return sum(not self._agrees(was, now) for was, now in again)

    def _agrees(self, right: Answer, given: Answer) -> bool:
        if given == right:
            return True
        pairs = zip(right.tokens, given.tokens, right.leads, strict=False)
        lead = next((lead for a, b, lead in pairs if a != b), None)
        if lead is None:
            return False
        self.ties.append(lead)
        return lead <= self.tie

    def start(self, clients: int) -> None:
        self.stopping.clear()
        self._threads = [
            threading.Thread(target=self._client, args=(n,), daemon=True) for n in range(clients)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self.stopping.set()
        for thread in self._threads:
            thread.join()

    def _client(self, number: int) -> None:
        chance = random.Random(self.seed * 1000 + number)
        port = self.ports[number % len(self.ports)]
        while not self.stopping.is_set():
            began = time.monotonic()
            kind, verdict, got = self._one(port, chance)
            self.outcomes.append(Outcome(port, kind, began, time.monotonic(), verdict, **got))
            self.stopping.wait(chance.random() * 2 * _PAUSE_S)

    def _one(self, port: int, chance: random.Random) -> tuple[str, str, dict[str, Any]]:
        index = None if chance.random() < self.fresh else chance.randrange(_POOL)
        if index is None:
            asked = self._asked(chance.choice(KINDS), next(self._numbers))
        else:
            asked = self._pool[index]
        kind, stream = asked.question.kind, chance.random() < 0.5
        try:
            if chance.random() < self.aborted:
                self._give_up(port, asked, stream, chance)
                return kind, "aborted", {}
            answer = self._ask(port, asked, stream)
        except Failure as failure:
            return kind, "failed", failure.outcome
        if index is None:
            self._new.append((asked, answer))
        wanted = answer if index is None else self._answers[index]
        if answer.tokens and self._agrees(wanted, answer):
            return kind, "right", {}
        return kind, "wrong", {"detail": f"{answer!r} instead of {wanted!r}"}

    def _ask(self, port: int, asked: Asked, stream: bool) -> Answer:
        with self._sent(port, asked, stream) as connection:
            try:
                response = connection.getresponse()
                if response.status != 200:
                    raise _refusal(response)
                return _streamed(response) if stream else _whole(response)
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise Failure(0, "", f"{type(error).__name__}: {error}") from None

    def _give_up(self, port: int, asked: Asked, stream: bool, chance: random.Random) -> None:
        """Leave after a moment, or after some of the stream."""
        with self._sent(port, asked, stream) as connection:
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
    def _sent(self, port: int, asked: Asked, stream: bool) -> Iterator[http.client.HTTPConnection]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
        with contextlib.closing(connection):
            try:
                headers = {"content-type": "application/json"}
                connection.request("POST", "/v1/chat/completions", asked.body(stream), headers)
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


def _whole(response: http.client.HTTPResponse) -> Answer:
    answer = json.loads(response.read())
    choice = answer["choices"][0]
    return _counted(
        choice["message"]["content"], choice["token_ids"], _leads(choice), answer["usage"]
    )


def _leads(choice: Any) -> list[float]:
    positions = (choice.get("logprobs") or {}).get("content") or ()
    tops = ([top["logprob"] for top in position["top_logprobs"]] for position in positions)
    return [best - second for best, second in tops]


def _counted(text: str, tokens: list[int], leads: list[float], usage: Any) -> Answer:
    if usage is None or usage["completion_tokens"] != len(tokens):
        raise Failure(200, "", f"{len(tokens)} tokens came, but usage is {usage}")
    return Answer(text, tuple(tokens), tuple(leads))


def _streamed(response: http.client.HTTPResponse) -> Answer:
    parts: list[str] = []
    tokens: list[int] = []
    leads: list[float] = []
    usage = None
    for line in response:
        if not line.startswith(b"data: "):
            continue
        if line.strip() == b"data: [DONE]":
            return _counted("".join(parts), tokens, leads, usage)
        event = json.loads(line[6:])
        if "error" in event:
            error = event["error"]
            raise Failure(200, str(error.get("code") or ""), str(error.get("message")))
        parts += [c["delta"].get("content") or "" for c in event["choices"]]
        tokens += [token for c in event["choices"] for token in c.get("token_ids") or ()]
        leads += [lead for c in event["choices"] for lead in _leads(c)]
        usage = event.get("usage") or usage
    raise Failure(200, "", "the stream ended without its end mark")
