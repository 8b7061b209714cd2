"""The demonstration model through the running stack: true answers, and exactly `generate()`'s."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from openai import OpenAI

from benchmarks.common.pictures import Question, questions
from tests.support.reference import load, reference_generate
from tests.support.stack import Process, idle, proxy, running

MODEL = Path(__file__).parents[2] / "models" / "demo"
CLAIMED = ("describe", "count", "colour", "shape", "background", "text")
OTHERS = ("digit", "two_images")
PER_KIND = 6
MAX_TOKENS = 48


@pytest.fixture(scope="module")
def server() -> Iterator[Process]:
    with running(MODEL) as stack:
        workers = [stack.start(f"services.{name}") for name in ("encoder", "prefill", "decode")]
        for worker in workers:
            worker.wait_ready()
        encode, prefill, decode = workers
        yield proxy(stack, [encode], [prefill], [decode])
        for worker in workers:
            idle(worker)


def asked(kind: str) -> list[Question]:
    return list(questions(kind, PER_KIND))


def answers(server: Process, kind: str) -> list[str]:
    """Every question of a kind at once, with OpenAI's own client."""
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)

    def ask(question: Question) -> str:
        answer = client.chat.completions.create(
            model="tiny",
            messages=question.openai_messages(),
            max_tokens=MAX_TOKENS,
            temperature=0,
        )
        return answer.choices[0].message.content or ""

    with ThreadPoolExecutor(PER_KIND) as pool:
        return list(pool.map(ask, asked(kind)))


def expected(question: Question) -> str:
    messages = question.messages()
    images = iter(question.images())
    for part in messages[0]["content"]:
        if part["type"] == "image":
            part["image"] = next(images)
    ids = reference_generate(MODEL, messages, MAX_TOKENS)
    return str(load(MODEL.resolve()).tokenizer.decode(ids, skip_special_tokens=True))


@pytest.mark.parametrize("kind", [*CLAIMED, *OTHERS])
def test_answers_are_those_of_generate(kind: str, server: Process) -> None:
    given = answers(server, kind)
    assert given == [expected(question) for question in asked(kind)]
    if kind in CLAIMED:
        right = sum(a == q.answer for a, q in zip(given, asked(kind), strict=True))
        assert right >= PER_KIND - 1, list(zip(given, asked(kind), strict=True))
