"""Conversations that a worker answers turn by turn, and the figures of each turn."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

SEED = 0
BLOCK = 16
AT_ONCE = 2
SHARE = 4  # of the working set, one part of so many fits into the pool
FIRST_TOKEN, LAST_TOKEN = 20, 600  # ordinary words of the demonstration model's vocabulary
_ANSWER_S = 300.0

Answers = dict[tuple[int, int], list[int]]
"""Tokens by conversation and turn."""


@dataclass(frozen=True)
class Load:
    """`sessions` of `turns` turns; a session begins with `system` tokens of its own, and each turn
    adds `user` tokens and as many of the `answer`."""

    sessions: int = 16
    turns: int = 5
    system: int = 400
    user: int = 48
    answer: int = 16

    @property
    def longest(self) -> int:
        """Tokens of a session after its last turn and the one after a restart."""
        return self.system + (self.turns + 1) * (self.user + self.answer)

    @property
    def pool_blocks(self) -> int:
        """A quarter of what all sessions hold halfway."""
        halfway = self.system + self.turns * (self.user + self.answer) // 2
        return self.sessions * -(-halfway // BLOCK) // SHARE


QUICK = Load(sessions=8, turns=3, system=240, user=32, answer=8)


@dataclass
class Run:
    """What one worker has done: seconds to the first token of each turn that counts, how long they
    took together, the answers, and the worker's counters."""

    firsts: list[float] = field(default_factory=list)
    seconds: float = 0.0
    answers: Answers = field(default_factory=dict)
    counters: dict[str, float] = field(default_factory=dict)

    @property
    def turns_s(self) -> float:
        return len(self.firsts) / self.seconds

    def first_ms(self, share: float) -> float:
        """The time to the first token that `share` of the turns keep."""
        return 1e3 * sorted(self.firsts)[min(len(self.firsts) - 1, int(share * len(self.firsts)))]

    @property
    def cached(self) -> float:
        """Share of prompt tokens that were not computed."""
        return self.counters["cached_tokens"] / self.counters["prompt_tokens"]


def take_turns(url: str, load: Load, run: Run, turn: int, *, counts: bool) -> None:
    """One turn of each conversation, in random order, `AT_ONCE` at once."""
    order = random.Random(f"{SEED}:{turn}").sample(range(load.sessions), load.sessions)
    threads = [
        threading.Thread(target=_speak, args=(url, load, run, order[n::AT_ONCE], turn, counts))
        for n in range(AT_ONCE)
    ]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run.seconds += counts * (time.perf_counter() - begun)
    if sum(number == turn for _, number in run.answers) < load.sessions:
        raise RuntimeError("a turn has failed")


def _speak(
    url: str, load: Load, run: Run, sessions: Sequence[int], turn: int, counts: bool
) -> None:
    for session in sessions:
        first_s, answer = ask(url, prompt(load, run, session, turn), load.answer)
        run.answers[session, turn] = answer
        if counts:
            run.firsts.append(first_s)


def prompt(load: Load, run: Run, session: int, turn: int) -> list[int]:
    """All that was said in a session, and what its user says in this turn."""
    words = random.Random(f"{SEED}:{session}")
    tokens = words.choices(range(FIRST_TOKEN, LAST_TOKEN), k=load.system)
    for number in range(turn + 1):
        tokens += words.choices(range(FIRST_TOKEN, LAST_TOKEN), k=load.user)
        tokens += run.answers[session, number] if number < turn else []
    return tokens


def ask(url: str, tokens: list[int], answer: int) -> tuple[float, list[int]]:
    """(seconds to the first token, tokens of the answer); `RuntimeError` if it fails."""
    sampling = {"max_tokens": answer, "temperature": 0.0, "ignore_eos": True}
    body = json.dumps({"token_ids": tokens, "sampling_params": sampling, "stream": True})
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=_ANSWER_S)
    found: list[int] = []
    first_s, begun = 0.0, time.perf_counter()
    with contextlib.closing(connection):
        connection.request(
            "POST", "/inference/v1/generate", body, {"content-type": "application/json"}
        )
        response = connection.getresponse()
        while text := response.readline():
            if not text.startswith(b"data: {"):
                continue
            for choice in json.loads(text[6:]).get("choices", ()):
                first_s = first_s or time.perf_counter() - begun
                found += choice["token_ids"]
    if len(found) != answer:
        raise RuntimeError(f"HTTP {response.status}: {len(found)} of {answer} tokens came")
    return first_s, found
