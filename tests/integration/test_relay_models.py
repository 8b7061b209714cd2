"""One relaying proxy before workers of several models."""

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tests.support.listening import run
from tests.support.relay_failures import saying, streaming
from tests.support.relay_workers import EVENTS, Relayed, Worker, relaying, text

MODELS = {"a": ("a", "alias"), "b": ("b",)}


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[tuple[Relayed, dict[str, Worker]]]:
    """A prefill and a decode worker of a, a decode worker of b, as a master would tell of them."""
    async with relaying("PDD") as relayed:
        fleet = relayed.gateway.fleet
        for worker, model in zip((*fleet.prefill, *fleet.decode), ("a", "a", "b"), strict=True):
            worker.model, worker.models = model, frozenset(MODELS[model])
        fleet.news()
        yield relayed, dict(zip(("a", "b"), relayed.workers["decode"], strict=True))


def listed(*names: str) -> Any:
    cards = [{"id": name, "object": "model", "max_model_len": 64} for name in names]
    return saying(json.dumps({"object": "list", "data": cards}).encode())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings", "/tokenize"])
@pytest.mark.parametrize(("name", "model"), [("a", "a"), ("alias", "a"), ("b", "b")])
def test_a_request_goes_to_its_model(path: str, name: str, model: str) -> None:
    async def work() -> None:
        async with serving() as (relayed, workers):
            for _ in range(4):
                status, _ = await relayed.post({**text(), "model": name}, path=path)
                assert status == 200
            assert {key: len(worker.asked) for key, worker in workers.items()} == {
                "a": 4 if model == "a" else 0,
                "b": 4 if model == "b" else 0,
            }
            prefilled = 4 if model == "a" and "chat" in path else 0
            assert len(relayed.workers["prefill"][0].asked) == prefilled

    run(work)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings", "/tokenize"])
@pytest.mark.parametrize("model", ["c", None])
def test_a_model_that_is_not_served(path: str, model: str | None) -> None:
    async def work() -> None:
        async with serving() as (relayed, workers):
            status, answer = await relayed.post({**text(), "model": model}, path=path)
            error = json.loads(answer)["error"]
            assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")
            assert not any(worker.asked for worker in workers.values())
            assert relayed.in_flight == 0

    run(work)


def test_a_recording_names_its_model_in_a_form() -> None:
    async def work() -> None:
        async with serving() as (relayed, workers):
            workers["b"].script = [saying(b'{"text":"hello"}')] * 3
            for _ in range(3):
                form = aiohttp.FormData()
                form.add_field("file", b"\x00RIFF", filename="a.wav")
                form.add_field("model", "b")
                url = relayed.url + "/v1/audio/transcriptions"
                async with relayed.session.post(url, data=form) as response:
                    assert response.status == 200
            assert len(workers["b"].asked) == 3 and not workers["a"].asked

    run(work)


def test_all_models_are_listed() -> None:
    async def work() -> None:
        async with serving() as (relayed, workers):
            names = {"a": ("a", "alias"), "b": ("b",)}
            for key, worker in workers.items():
                worker.script = [listed(*names[key])] * 3
            async with relayed.session.get(relayed.url + "/v1/models") as response:
                cards = (await response.json())["data"]
            assert sorted(card["id"] for card in cards) == ["a", "alias", "b"]
            async with relayed.session.get(relayed.url + "/v1/models/b") as response:
                assert (await response.json())["id"] == "b"
            async with relayed.session.get(relayed.url + "/v1/models/c") as response:
                assert response.status == 404

    run(work)


def test_the_list_does_without_a_model_whose_worker_fails() -> None:
    async def work() -> None:
        async with serving() as (relayed, workers):
            workers["a"].script = [saying(b"oops", status=500)]
            workers["b"].script = [listed("b")]
            async with relayed.session.get(relayed.url + "/v1/models") as response:
                assert [card["id"] for card in (await response.json())["data"]] == ["b"]

    run(work)


def test_another_models_worker_does_not_stand_in() -> None:
    async def work() -> None:
        async with serving() as (relayed, workers):
            workers["b"].script = [streaming(EVENTS[0], end="drop")] * 9
            body = {**text(stream=True), "model": "b"}
            status, answer = await relayed.post(body)
            assert status == 200 and b"error" in answer
            assert not workers["a"].asked

    run(work)
