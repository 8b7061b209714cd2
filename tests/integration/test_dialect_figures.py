"""Figures of answers are the same through both dialects, and those that transformers has."""

import json
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import ModelDir
from tests.support.clients import openai_messages
from tests.support.conversations import LONG, asking, picture, picture_cases
from tests.support.reference import Inputs, Messages, Reference, load
from tests.support.scores import log_probabilities
from tests.support.stack import Process, call, idle, proxy, running
from tests.support.thinned import diagonal

Json = dict[str, Any]
DIALECTS = ("tokens", "openai")
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
TOKENS, TOP = 6, 3
TOLERANCE = 2e-4  # nats, in float32: other batches and cached prefixes add in another order
CAP = 28 * 28 * 9  # pixels
SIZE = {"shortest_edge": 28 * 28}
WANTED: Json = {
    "max_tokens": TOKENS,
    "temperature": 0,
    "ignore_eos": True,
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
}


@dataclass(frozen=True)
class Fleets:
    """A proxy of each dialect before the same workers, which one test at a time asks."""

    model: Path
    proxies: dict[str, Process]
    workers: list[Process]

    def post(self, dialect: str, path: str, body: Json) -> Json:
        status, answer = call(self.proxies[dialect].url + path, body)
        assert status == 200, answer
        return dict(answer)

    def forget(self) -> None:
        """The workers have seen nothing."""
        for worker in self.workers:
            assert call(f"{worker.url}/reset_encoder_cache", b"")[0] == 200
        for worker in self.workers[1:]:
            assert call(f"{worker.url}/reset_prefix_cache", b"")[0] == 200

    def stream(self, dialect: str, path: str, body: Json) -> list[Json]:
        """Data of its events."""
        data = json.dumps({**body, "stream": True}).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(self.proxies[dialect].url + path, data, headers)
        with urllib.request.urlopen(request, timeout=60) as response:
            lines = response.read().decode().splitlines()
        found = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        return [json.loads(line) for line in found if line != "[DONE]"]


@pytest.fixture(scope="module")
def fleets(model_dir: ModelDir) -> Iterator[Fleets]:
    model = model_dir("qwen2_5_vl")
    with running(model) as stack:
        workers = [stack.start(f"services.{role}") for role in ("encoder", "prefill", "decode")]
        for worker in workers:
            worker.wait_ready()
        encode, prefill, decode = ([worker] for worker in workers)
        proxies = {one: proxy(stack, encode, prefill, decode, "--dialect", one) for one in DIALECTS}
        yield Fleets(model, proxies, workers)
        for worker in workers:
            idle(worker)


def chat(messages: Messages, **fields: Any) -> Json:
    return {**WANTED, "messages": openai_messages(messages), **fields}


def requests() -> list[tuple[str, Json]]:
    """Prompts that share beginnings and pictures."""
    text, longer = asking(LONG), asking(f"{LONG} And another one, if you please.")
    asked = [(CHAT, chat(case)) for case in (*picture_cases()[1:4], text, longer)]
    asked += [(CHAT, chat(text, n=2, temperature=1.0, seed=3)), (TEXT, {**WANTED, "prompt": LONG})]
    asked.append((TEXT, {**WANTED, "prompt": [LONG, "Hello"], "n": 2, "best_of": 3, "seed": 1}))
    said, short = f"An agent says: {LONG}", {"temperature": 0}
    asked.append(("/v1/responses", {"input": said, "max_output_tokens": TOKENS, **short}))
    turns = [{"role": "user", "content": f"{said} Twice."}]
    asked.append(("/v1/messages", {"messages": turns, "max_tokens": TOKENS, **short}))
    return asked


def test_usage_is_the_same_through_both_dialects(fleets: Fleets) -> None:
    """All of it, cached tokens included: the caches have seen the same each time."""
    one, other = (usages(fleets, dialect) for dialect in DIALECTS)
    for number, (usage, same) in enumerate(zip(one, other, strict=True)):
        assert usage == same, number
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in one[:2]]
    assert cached[0] < cached[1]  # the first request, and then its stream


def usages(fleets: Fleets, dialect: str) -> list[Json]:
    """Of all requests, of their streams, and of all once more."""
    fleets.forget()
    told = []
    for path, body in requests():
        told.append(fleets.post(dialect, path, body)["usage"])
        if path in (CHAT, TEXT) and "best_of" not in body:
            streamed = {**body, "stream_options": {"include_usage": True}}
            told.append(fleets.stream(dialect, path, streamed)[-1]["usage"])
    return told + [fleets.post(dialect, path, body)["usage"] for path, body in requests()]


@pytest.mark.parametrize("asked", [{"max_pixels": CAP}, {"size": {**SIZE, "longest_edge": CAP}}])
def test_a_cap_on_pixels_is_the_same_through_both_dialects(asked: Json, fleets: Fleets) -> None:
    """`mm_processor_kwargs` reach the encoder and the prefill worker alike, as transformers has
    them; pictures that caches know in another size are no other ones."""
    reference, case = reference_of(fleets), picture_cases()[3]
    sizes: list[Any] = [{**SIZE, "longest_edge": CAP}, None]
    small, whole = (reference.inputs(case, size=size) for size in sizes)
    lengths = [inputs["input_ids"].shape[1] for inputs in (small, whole)]
    assert lengths[0] < lengths[1]
    for dialect in DIALECTS:
        answers = [
            fleets.post(dialect, CHAT, chat(case, **fields))
            for fields in ({"mm_processor_kwargs": asked}, {})
        ]
        assert [answer["usage"]["prompt_tokens"] for answer in answers] == lengths
        for answer, inputs in zip(answers, (small, whole), strict=True):
            expected = reference.generate(inputs, TOKENS, ignore_eos=True)
            assert answer["choices"][0]["token_ids"] == expected
        status, answer = call(
            fleets.proxies[dialect].url + CHAT, chat(case, mm_processor_kwargs={"max_pixels": 0})
        )
        assert status == 400 and answer["error"]["param"].startswith("mm_processor_kwargs")


def reference_of(fleets: Fleets) -> Reference:
    return load(fleets.model.resolve())


def scored(answer: Json) -> list[tuple[int, float, dict[int, float]]]:
    """(token, its log-probability, those of the likeliest) of a whole answer or of a chunk."""
    found = answer["choices"][0].get("logprobs") if answer["choices"] else None
    if found is None:
        return []
    if "content" in found:
        return [
            (
                _id(entry["token"]),
                entry["logprob"],
                {_id(top["token"]): top["logprob"] for top in entry["top_logprobs"]},
            )
            for entry in found["content"]
        ]
    tops = [{_id(name): value for name, value in top.items()} for top in found["top_logprobs"]]
    return list(zip(map(_id, found["tokens"]), found["token_logprobs"], tops, strict=True))


def _id(name: str) -> int:
    return int(name.removeprefix("token_id:"))


def check(found: list[tuple[int, float, dict[int, float]]], expected: torch.Tensor) -> None:
    assert len(found) == TOKENS
    for (token, value, tops), row in zip(found, expected, strict=True):
        assert value == pytest.approx(float(row[token]), abs=TOLERANCE)
        assert len(tops) == TOP
        for other, likely in tops.items():
            assert likely == pytest.approx(float(row[other]), abs=TOLERANCE)
        assert min(tops.values()) >= float(row.topk(TOP).values[-1]) - TOLERANCE
        assert max(tops.values()) == pytest.approx(float(row.max()), abs=TOLERANCE)


CASES: dict[str, tuple[str, Messages | str]] = {
    "text": (CHAT, asking("Hello")),
    "picture": (CHAT, asking(picture(7), LONG)),
    "pictures": (CHAT, asking(picture(8), "First this,", picture(9, 320, 200), "then that.")),
    "completion": (TEXT, LONG),
}


@pytest.mark.parametrize(("named", "drawn"), diagonal([*CASES], [False, True]))
def test_log_probabilities_are_those_of_transformers(
    named: str, drawn: bool, fleets: Fleets
) -> None:
    """Of output tokens and of the likeliest, whole and streamed, through both dialects."""
    reference, (path, case) = reference_of(fleets), CASES[named]
    shown: Json = {"logprobs": True, "top_logprobs": TOP} if path == CHAT else {"logprobs": TOP}
    if drawn:
        shown |= {"temperature": 1.0, "seed": 11, "top_k": 2}
    if isinstance(case, str):
        body, inputs = {**WANTED, "prompt": case, **shown}, text_inputs(reference, case)
    else:
        body, inputs = chat(case, **shown), reference.inputs(case)
    answers = []
    for dialect in DIALECTS:
        whole = fleets.post(dialect, path, body)
        assert whole["usage"]["prompt_tokens"] == inputs["input_ids"].shape[1]
        answers.append(scored(whole))
        events = fleets.stream(dialect, path, body)
        answers.append([place for event in events for place in scored(event)])
    outputs = [[token for token, _, _ in answer] for answer in answers]
    assert outputs == outputs[:1] * len(answers)
    expected = log_probabilities(reference, inputs, outputs[0])
    assert drawn or expected.argmax(-1).tolist() == outputs[0]
    for answer in answers:
        check(answer, expected)


def text_inputs(reference: Reference, prompt: str) -> Inputs:
    ids = reference.tokenizer(prompt, add_special_tokens=False, return_tensors="pt")["input_ids"]
    return {"input_ids": ids}


def test_pictures_of_agents_are_counted_as_those_of_chats(fleets: Fleets) -> None:
    """Where the proxy renders: a decode worker that gets the request as it is has no vision
    model."""
    reference, case = reference_of(fleets), picture_cases()[1]
    whole, small = (
        reference.inputs(case, size=size)["input_ids"].shape[1]
        for size in (None, {**SIZE, "longest_edge": CAP})
    )
    picture_part, text_part = openai_messages(case)[0]["content"]
    url, text = picture_part["image_url"]["url"], text_part["text"]
    parts = [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": text}]
    body = {"input": [{"role": "user", "content": parts}], "max_output_tokens": TOKENS}
    for fields, length in (({}, whole), ({"mm_processor_kwargs": {"max_pixels": CAP}}, small)):
        answer = fleets.post("tokens", "/v1/responses", {**body, **fields})
        assert answer["usage"]["input_tokens"] == length
    source = {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}
    blocks = [{"type": "image", "source": source}, {"type": "text", "text": text}]
    message = {"messages": [{"role": "user", "content": blocks}], "max_tokens": TOKENS}
    usage = fleets.post("tokens", "/v1/messages", message)["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == whole
    for dialect in DIALECTS:
        counted = fleets.post(dialect, "/v1/messages/count_tokens", message)
        assert counted == {"input_tokens": whole}
