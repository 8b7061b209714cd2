"""Whole benchmark runs against a real, fake-minded server."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common.pictures import sample
from benchmarks.serve.datasets import DatasetError
from benchmarks.serve.report import failure_summary, result, table
from benchmarks.serve.runner import NotReadyError
from tests.support.benchmark_runs import SHORT, measure
from tests.support.fake_openai import FakeOpenAI

DELAY_S = 0.02


async def test_chat_run() -> None:
    server = FakeOpenAI(delay=DELAY_S)
    report = await measure(server, *SHORT, "--max-concurrency", "2", "--seed", "3")
    metrics = report.metrics
    assert (metrics.completed, metrics.failed) == (6, 0)
    assert (metrics.total_input, metrics.total_output) == (6 * 7, 6 * 3)
    assert metrics.peak_concurrency == 2
    assert 2 <= server.peak_in_flight < 6
    assert report.run.duration >= 3 * 3 * DELAY_S
    for outcome in report.run.outcomes:
        assert outcome.text == "one two three"
        assert outcome.ttft >= DELAY_S
        assert len(outcome.itls) == 2
        assert outcome.latency == pytest.approx(outcome.ttft + sum(outcome.itls))
        assert outcome.tpot == pytest.approx(sum(outcome.itls) / 2)
    assert max(outcome.queued for outcome in report.run.outcomes) >= DELAY_S


async def test_chat_request() -> None:
    server = FakeOpenAI()
    argv = ("--temperature", "0", "--extra-body", '{"seed": 5}', "--header", "x-team=a")
    await measure(server, *SHORT, *argv)
    body = server.requests[0]
    (message,) = body.pop("messages")
    assert message["role"] == "user"
    assert [part["type"] for part in message["content"]] == ["text"]
    assert len(message["content"][0]["text"].split()) == 10  # the fake counts two per word
    assert body == {
        "model": "fake",
        "max_completion_tokens": 3,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "temperature": 0.0,
        "seed": 5,
    }
    ids = [headers["x-request-id"] for headers in server.headers]
    assert len(set(ids)) == 6
    assert all(re.fullmatch(r"bench-[0-9a-f]{8}-\d", request_id) for request_id in ids)
    assert {headers["x-team"] for headers in server.headers} == {"a"}


async def test_authorization(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    server = FakeOpenAI()
    await measure(server, *SHORT)
    assert server.headers[0]["Authorization"] == "Bearer k"
    await measure(server, *SHORT, "--header", "authorization=Bearer other")
    assert server.headers[-1]["Authorization"] == "Bearer other"


async def test_completions_run() -> None:
    server = FakeOpenAI(has_tokenize=False)
    argv = ("--backend", "vllm", "--model", "m", "--random-prefix-len", "5")
    report = await measure(server, *SHORT, *argv)
    assert report.metrics.completed == 6
    assert report.tokenizer.startswith("words")
    body = server.requests[0]
    assert (body["model"], body["max_tokens"]) == ("m", 3)
    prompts = [request["prompt"].split() for request in server.requests]
    assert {len(prompt) for prompt in prompts} == {25}
    assert len({tuple(prompt[:5]) for prompt in prompts}) == 1
    assert len({tuple(prompt[5:]) for prompt in prompts}) == 6


async def test_the_seed_decides_the_prompts() -> None:
    async def prompts(seed: str) -> list[Any]:
        server = FakeOpenAI()
        await measure(server, *SHORT, "--seed", seed, "--random-range-ratio", "0.5")
        return sorted(json.dumps(request) for request in server.requests)

    first, again, other = await prompts("1"), await prompts("1"), await prompts("2")
    assert first == again != other


async def test_random_pictures() -> None:
    server = FakeOpenAI()
    argv = ("--random-mm-base-items-per-request", "2", "--random-mm-bucket-config")
    report = await measure(server, "--dataset-name", "random-mm", *SHORT, *argv, "{(28, 56, 1): 1}")
    assert report.metrics.completed == 6
    parts = [part for request in server.requests for part in request["messages"][0]["content"]]
    urls = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    assert len(set(urls)) == 12
    assert all(url.startswith("data:image/jpeg;base64,") for url in urls)


async def test_demo_answers_are_checked() -> None:
    kinds = ("colour", "text")
    questions = [sample(kind, index) for index in range(3) for kind in kinds]
    right = {json.dumps(q.openai_messages()): q.answer for q in questions[:-1]}
    server = FakeOpenAI(answers=right, tokens=("a wrong answer",))
    report = await measure(
        server, "--dataset-name", "demo", "--demo-kinds", ",".join(kinds), "--num-prompts", "6"
    )
    assert report.accuracy is not None
    assert report.accuracy.right == {"colour": 3, "text": 2}
    assert report.accuracy.share == pytest.approx(5 / 6)
    assert result(report)["accuracy_by_kind"] == {"colour": 1.0, "text": pytest.approx(2 / 3)}
    assert "Accuracy of text:                        2/3" in table(report)
    assert server.requests[0]["temperature"] == 0


async def test_a_true_answer_in_other_words_is_right() -> None:
    question = sample("colour", 0)
    colour = question.answer.rstrip(".").split()[-1]
    server = FakeOpenAI(tokens=("It ", "is ", f"**{colour}**, I think."))
    argv = ("--dataset-name", "demo", "--demo-kinds", "colour", "--num-prompts", "1")
    report = await measure(server, *argv)
    assert report.accuracy is not None
    assert report.accuracy.right == {"colour": 1}


async def test_failures_have_reasons() -> None:
    server = FakeOpenAI(refuse=frozenset({0, 1}), cut=frozenset({2}), break_off=frozenset({3}))
    report = await measure(server, *SHORT)
    assert (report.metrics.completed, report.metrics.failed) == (2, 4)
    summary = failure_summary(report.run.outcomes)
    assert "2 x HTTP 503: busy" in summary
    assert "1 x in the stream: worker lost" in summary
    errors = [outcome.error for outcome in report.run.outcomes]
    assert sum("Error" in error for error in errors) == 1  # the cut connection


async def test_arrivals_and_warm_up() -> None:
    server = FakeOpenAI()
    report = await measure(
        server,
        *SHORT,
        "--request-rate",
        "40",
        "--num-warmups",
        "2",
        "--ready-check-timeout-sec",
        "1",
    )
    assert len(server.requests) == 6 + 2 + 1
    assert len(report.run.outcomes) == report.metrics.completed == 6
    assert report.run.duration >= 6 / 40
    starts = [outcome.start for outcome in report.run.outcomes]
    assert starts == sorted(starts)


async def test_a_server_that_is_never_ready() -> None:
    server = FakeOpenAI(refuse=frozenset(range(100)))
    with pytest.raises(NotReadyError, match="busy"):
        await measure(server, *SHORT, "--ready-check-timeout-sec", "0.1")


async def test_custom_and_sharegpt_files(tmp_path: Path) -> None:
    custom = tmp_path / "custom.jsonl"
    custom.write_text('{"prompt": "a b", "output_tokens": 9}\n{"prompt": "c", "answer": "d"}\n')
    server = FakeOpenAI()
    argv = ("--num-prompts", "5", "--dataset-path", str(custom), "--dataset-name", "custom")
    report = await measure(server, *argv)
    assert report.metrics.completed == 5
    assert {r["max_completion_tokens"] for r in server.requests} == {256}
    assert len((await measure(FakeOpenAI(), *argv, "--no-oversample")).run.outcomes) == 2
    with pytest.raises(DatasetError, match="output_tokens"):
        await measure(FakeOpenAI(), *argv, "--custom-output-len", "-1")

    sharegpt = tmp_path / "sharegpt.json"
    turns = [{"from": "human", "value": "a b c"}, {"from": "gpt", "value": "d e f g"}]
    sharegpt.write_text(json.dumps([{"conversations": turns}, {"conversations": turns[:1]}]))
    server = FakeOpenAI()
    argv = ("--num-prompts", "3", "--dataset-path", str(sharegpt), "--dataset-name", "sharegpt")
    await measure(server, *argv)
    assert [r["max_completion_tokens"] for r in server.requests] == [8] * 3
