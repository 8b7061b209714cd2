"""Clients of a stack whose workers die: mixed questions about pictures, some given up half-way."""

from __future__ import annotations

import http.client
import itertools
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.common.pictures import sample
from benchmarks.soak.chat import Answer, Asked, Failure, ask, refusal, sent

KINDS = ("describe", "count", "text", "one_of_two", "position", "text")
_SAME = 1e-3  # by how much elements of a vector of length 1 may differ
_POOL = 24  # questions that are asked again and again
_PAUSE_S = 0.1  # on average, between two requests of a client


@dataclass(frozen=True)
class Outcome:
    """A request from its sending to its end."""

    port: int  # where it was sent
    kind: str  # of its question
    began: float  # monotonic seconds
    ended: float  # the same
    # "right" (as the first time, or new), "wrong", "aborted" (by the client) or "failed".
    verdict: str
    status: int = 0  # of a failed one, 0 for a broken connection
    code: str = ""  # of its error
    detail: str = ""  # what it said


def about_pictures(kind: str, number: int) -> Asked:
    """A question of that kind about drawn pictures, or text; `number` says which one."""
    return Asked(sample(kind, number))


@dataclass
class Load:
    """Clients that ask until stopped."""

    ports: Sequence[int]  # of the proxies; each client asks at one
    seed: int  # of questions, pauses and what is given up
    fresh: float = 0.4  # the share of questions that were never asked before
    aborted: float = 0.15  # the share of requests given up half-way
    # Above 0, so many tokens an answer, and every second question sampled by a seed
    length: int = 0
    # Above 0 all is greedy, and an answer may go its own way where the right one's token leads by
    # no more than that (a difference of logits): another batch rounds otherwise
    tie: float = 0.0
    kinds: Sequence[str] = KINDS  # of questions, each as often as it is named
    make: Callable[[str, int], Asked] = about_pictures  # a question of a kind, by its number
    ties: list[float] = field(default_factory=list)  # those leads
    outcomes: list[Outcome] = field(default_factory=list)  # what became of every request
    stopping: threading.Event = field(default_factory=threading.Event)  # set to end the clients

    def __post_init__(self) -> None:
        self._numbers = itertools.count(1000)
        self._pool = [
            self._asked(self.kinds[i % len(self.kinds)], self.seed * _POOL + i)
            for i in range(_POOL)
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
        asked = self.make(kind, number)
        return replace(asked, params=(*params.items(), *asked.params))

    def learn(self) -> None:
        """Ask each question of the pool once: these answers are the right ones."""
        for index, asked in enumerate(self._pool):
            self._answers[index] = ask(self.ports[0], asked, stream=bool(index % 2))

    def check_new(self) -> int:
        """Ask the new questions once more, undisturbed: how many are answered otherwise."""
        new, self._new = self._new, []
        again = ((was, ask(self.ports[0], asked, stream=False)) for asked, was in new)
        return sum(not self._agrees(was, now) for was, now in again)

    def _agrees(self, right: Answer, given: Answer) -> bool:
        if given == right:
            pairs = zip(right.vector, given.vector, strict=True)
            return all(abs(a - b) <= _SAME for a, b in pairs)
        led = zip(right.tokens, given.tokens, right.leads, strict=False)
        lead = next((lead for a, b, lead in led if a != b), None)
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
            asked = self._asked(chance.choice(self.kinds), next(self._numbers))
        else:
            asked = self._pool[index]
        kind, stream = asked.question.kind, chance.random() < 0.5
        try:
            if chance.random() < self.aborted:
                self._give_up(port, asked, stream, chance)
                return kind, "aborted", {}
            answer = ask(port, asked, stream)
        except Failure as failure:
            return kind, "failed", failure.outcome
        if index is None:
            self._new.append((asked, answer))
        wanted = answer if index is None else self._answers[index]
        if answer.tokens and self._agrees(wanted, answer):
            return kind, "right", {}
        return kind, "wrong", {"detail": f"{answer!r} instead of {wanted!r}"}

    def _give_up(self, port: int, asked: Asked, stream: bool, chance: random.Random) -> None:
        """Leave after a moment, or after some of the stream."""
        with sent(port, asked, stream) as connection:
            self.stopping.wait(chance.random() * 0.5)
            if not stream or chance.random() < 0.5:
                return
            try:
                response = connection.getresponse()
                if response.status != 200:
                    raise refusal(response)
                for _ in range(chance.randrange(1, 12)):
                    response.readline()
            except (OSError, http.client.HTTPException) as error:
                raise Failure(0, "", f"{type(error).__name__}: {error}") from None
