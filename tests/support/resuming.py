"""A relay before workers whose streams break, and what its clients should see of that."""

import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from proxy.fleet.probing import probe_once
from proxy.upstream.client import UpstreamClient
from tests.support.greedy_workers import PENALTY, Greedy, prompt_of, steps
from tests.support.relay_workers import CHAT, Asked, Relayed, relaying

USAGE = {"include_usage": True}
HEADERS = {"x-request-id": "me"}
CASES = ("case 9", "case 50", "case 54")


def asking(content: str = "case 54", **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    body = {"model": "m", "messages": messages, "stream": True, "temperature": 0, "max_tokens": 12}
    return {**body, **more}


def undisturbed(body: dict[str, Any], created: int = 1, per_step: int = 1) -> list[bytes]:
    """The events of a stream that does not break."""
    worker = Greedy("decode", created=created, per_step=per_step)
    return list(worker.chat(Asked(CHAT, HEADERS, body, 0)))


def first(body: dict[str, Any], events: int) -> int:
    """The bytes of a worker's first events, which have token ids."""
    return sum(map(len, undisturbed({**body, "return_token_ids": True})[:events]))


def held_back(body: dict[str, Any]) -> int:
    """The number of events up to the first token without text, inclusive."""
    made = steps(prompt_of(body), {"max_tokens": 200, "repetition_penalty": PENALTY})
    return 2 + next(number for number, step in enumerate(made) if not step.text)


@dataclass
class Fleet:
    relayed: Relayed
    workers: list[Greedy]

    def asked(self, path: str) -> list[dict[str, Any]]:
        return [a.body for w in self.workers for a in w.asked if a.path == path and a.body]

    async def post(self, body: dict[str, Any]) -> bytes:
        status, answer = await self.relayed.post(body, HEADERS)
        assert status == 200
        return answer

    @property
    def resumed(self) -> float:
        return self.relayed.metric('retries_total{stage="resumed"}')


@contextlib.asynccontextmanager
async def fleet(
    topology: str = "DD", *flags: str, resumes: Callable[[int], bool] = lambda n: True
) -> AsyncIterator[Fleet]:
    """Decode workers write 1, 2 … as `created`. The first stream is the first one's."""
    made: list[Greedy] = []

    def kind(role: str) -> Greedy:
        made.append(Greedy(role))
        return made[-1]

    async with relaying(topology, *flags, kind=kind) as relayed:
        decode = [worker for worker in made if worker.role == "decode"]
        for number, worker in enumerate(decode):
            worker.created, worker.resumes = number + 1, resumes(number)
        client = UpstreamClient(2.0, probe_timeout_s=20.0)
        await probe_once(relayed.relay._fleet, client)
        await client.close()
        for worker in made:
            worker.asked.clear()
        yield Fleet(relayed, decode)


def places(events: list[bytes]) -> list[int]:
    """In and between all events, from the first one's end on, as numbers of bytes."""
    found, size = [], 0
    for data in events[:-1]:
        size += len(data)
        found += [size, size + 1, size + 20, size + 60]
    total = sum(map(len, events))
    return [place for place in found if place < total]


def one_error(answer: bytes, before: list[bytes]) -> None:
    *events, error, done, rest = answer.split(b"\n\n")
    assert [event + b"\n\n" for event in events] == before
    assert (done, rest) == (b"data: [DONE]", b"")
    assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == "upstream_error"
