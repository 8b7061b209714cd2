"""All doors of a proxy that renders for several models, each before workers of its own."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
import pytest

from protocol.generate_answers import ChoiceBody, GenerateAnswer
from protocol.types import GenerateRequest
from proxy.fleet.own_model import OwnModel, OwnModels
from services.frontend.config import FrontendConfig
from services.frontend.models import Models
from tests.support.frontend_helpers import write_model
from tests.support.grpc_doors import door_of
from tests.support.pooling_models import add_embedding_files
from tests.support.scripted_apps import app_of
from tests.support.scripted_workers import TOKENS, Stack, Worker, before, handing_over
from tests.support.vectors import packed

NAMES = [("pictures", "eyes"), ("text",), ("vectors",)]
USER = [{"role": "user", "content": "Hello"}]
LIMIT = {"max_tokens": len(TOKENS), "temperature": 0}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    root = tmp_path_factory.mktemp("models")
    write_model("qwen2_5_vl", root / "pictures", vocab_size=600)
    write_model("llama", root / "text")
    write_model("qwen3", root / "vectors")
    add_embedding_files(root / "vectors")
    return Models.load([FrontendConfig(root / names[0], names) for names in NAMES])


async def vector(request: GenerateRequest) -> bytes:
    assert request.pooling is not None
    values = packed([1.0] + [0.0] * ((request.pooling.dimensions or 1) - 1))
    choice = ChoiceBody(0, [], finish_reason="stop", pooled=values)
    return msgspec.json.encode(GenerateAnswer(request.request_id, [choice]))


@dataclass
class Site:
    url: str
    stack: Stack
    workers: dict[str, Worker]
    session: aiohttp.ClientSession

    async def ask(self, path: str, body: Any = None) -> tuple[int, Any]:
        method = "GET" if body is None else "POST"
        async with self.session.request(method, self.url + path, json=body) as response:
            return response.status, await response.json()

    @property
    def asked(self) -> list[str]:
        """The models whose workers were asked."""
        return [name for name, worker in self.workers.items() if worker.calls]


@contextlib.asynccontextmanager
async def fleet_of(models: Models) -> AsyncIterator[tuple[Stack, dict[str, Worker]]]:
    """A worker of each model; that of text has an adapter."""
    workers = {
        names[0]: Worker(whole=vector if names[0] == "vectors" else handing_over) for names in NAMES
    }
    flags = ("--admin-api-key", "root")
    serving = before(decode=[*workers.values()], own=OwnModels(*map(OwnModel, NAMES)), flags=flags)
    async with serving as stack:
        for instance, model in zip(stack.decode, workers, strict=True):
            instance.model, instance.models = model, frozenset((model,))
        adapters = {"lora": "r1"}
        stack.decode[1].adapters, stack.decode[1].models = adapters, frozenset(("text", "lora"))
        stack.fleet.news()
        models.all[1].served.adapters = adapters
        yield stack, workers


@pytest.fixture
async def site(models: Models) -> AsyncIterator[Site]:
    async with (
        fleet_of(models) as (stack, workers),
        app_of(stack, models) as url,
        aiohttp.ClientSession() as session,
    ):
        yield Site(url, stack, workers, session)


CHAT: dict[str, Any] = {"messages": USER, **LIMIT}
GENERATED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/chat/completions": CHAT,
    "/v1/chat/completions/batch": {"messages": [USER, USER], **LIMIT},
    "/v1/completions": {"prompt": "Hello", **LIMIT},
    "/v1/responses": {"input": "Hello", "max_output_tokens": len(TOKENS)},
    "/v1/messages": {"messages": USER, "max_tokens": len(TOKENS)},
}
RENDERED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions/render": CHAT,
    "/v1/completions/render": {"prompt": "Hello"},
    "/v1/messages/count_tokens": {"messages": USER},
    "/chat/render": CHAT,
    "/tokenize": {"prompt": "Hello"},
    "/detokenize": {"tokens": [65, 66]},
}
POOLED: dict[str, dict[str, Any]] = {
    "/v1/embeddings": {"input": "Hello"},
    "/pooling": {"input": "Hello"},
    "/score": {"text_1": "Hello", "text_2": "Bye"},
    "/rerank": {"query": "Hello", "documents": ["Bye"]},
    "/v1/embeddings/similarity": {"left": ["Hello"], "right": ["Bye"]},
}


@pytest.mark.parametrize(
    ("name", "model"),
    [("pictures", "pictures"), ("eyes", "pictures"), ("text", "text"), ("lora", "text")],
)
async def test_a_request_goes_to_its_model(name: str, model: str, site: Site) -> None:
    calls = site.workers[model].calls
    for path, body in GENERATED.items():
        already = len(calls)
        for _ in range(3):
            status, answer = await site.ask(path, {**body, "model": name})
            assert status == 200, (path, answer)
            assert answer["model"] == name, path
            assert site.asked == [model], path
        assert len(calls) >= already + 3, path
    (told,) = {call.model for call in site.workers[model].calls}
    assert told == ("lora" if name == "lora" else ""), "workers may call the model otherwise"


async def test_without_a_name_the_first_model_is_meant(site: Site) -> None:
    for path, body in GENERATED.items():
        if path != "/v1/messages":
            status, answer = await site.ask(path, body)
            found = (path, status, answer["model"], site.asked)
            assert found == (path, 200, "pictures", ["pictures"])


async def test_vectors_are_asked_of_the_model_that_has_them(site: Site) -> None:
    calls = site.workers["vectors"].calls
    for path, body in POOLED.items():
        already = len(calls)
        status, answer = await site.ask(path, {**body, "model": "vectors"})
        assert status == 200, (path, answer)
        assert site.asked == ["vectors"] and len(calls) > already, path
        status, answer = await site.ask(path, {**body, "model": "text"})
        assert (path, status, answer["error"]["code"]) == (path, 400, "unsupported_task")
    status, answer = await site.ask("/v1/chat/completions", {**CHAT, "model": "vectors"})
    assert (status, answer["error"]["code"]) == (400, "unsupported_task")
    assert site.asked == ["vectors"]


async def test_a_name_of_no_model_is_not_found(site: Site) -> None:
    bodies = {**GENERATED, **RENDERED, **POOLED, "/classify": {"input": "Hello"}}
    for path, body in bodies.items():
        status, answer = await site.ask(path, {**body, "model": "other"})
        assert status == 404, (path, answer)
        error = answer["error"]
        if path.startswith("/v1/messages"):
            assert error["type"] == "not_found_error", path
        else:
            assert (error["code"], error["param"]) == ("model_not_found", "model"), path
    assert not site.asked


async def test_each_model_has_its_own_tokens_and_template(models: Models, site: Site) -> None:
    for frontend in models.all[:2]:
        wanted = frontend.tokenizer.encode("Hello, you", add_special_tokens=True)
        _, answer = await site.ask("/tokenize", {"prompt": "Hello, you", "model": frontend.name})
        assert answer["tokens"] == wanted
        _, chat = await site.ask("/tokenize", {"messages": USER, "model": frontend.name})
        _, rendered = await site.ask(
            "/v1/chat/completions/render", {**CHAT, "model": frontend.name}
        )
        _, shown = await site.ask("/chat/render", {**CHAT, "model": frontend.name})
        assert chat["tokens"] == rendered["token_ids"] == shown["input_ids"]
        _, text = await site.ask("/detokenize", {"tokens": wanted, "model": frontend.name})
        assert text == {"prompt": frontend.tokenizer.decode(wanted)}
    eos = {tuple(one.info.eos_token_ids) for one in models.all[:2]}
    assert len(eos) == 2, "the two would be told from each other"


async def test_all_models_are_listed(site: Site) -> None:
    _, answer = await site.ask("/v1/models")
    parents = {card["id"]: card["parent"] for card in answer["data"]}
    assert parents == {
        "pictures": None, "eyes": None, "text": None, "lora": "text", "vectors": None
    }  # fmt: skip
    assert (await site.ask("/v1/models/lora"))[1]["parent"] == "text"
    status, answer = await site.ask("/v1/models/other")
    assert (status, answer["error"]["code"]) == (404, "model_not_found")


async def test_a_model_without_workers_is_unavailable_alone(site: Site) -> None:
    site.stack.decode[0].up = False
    status, answer = await site.ask("/v1/chat/completions", {**CHAT, "model": "pictures"})
    assert (status, answer["error"]["code"]) == (503, "no_worker")
    status, _ = await site.ask("/v1/chat/completions", {**CHAT, "model": "text"})
    assert status == 200
    status, health = await site.ask("/health")
    assert status == 200
    assert health["models"] == {"pictures": "down", "text": "up", "vectors": "up"}
    for instance in site.stack.decode:
        instance.up = False
    assert (await site.ask("/health"))[0] == 503


async def test_operators_may_ask_the_workers_of_one_model(site: Site) -> None:
    async def asked(model: str) -> list[str]:
        url = f"{site.url}/reset_prefix_cache?model={model}"
        async with site.session.post(url, headers={"x-api-key": "root"}) as response:
            return list((await response.json()).get("workers", ()))

    urls = {name: worker.url for name, worker in site.workers.items()}
    assert await asked("text") == [urls["text"]] and await asked("eyes") == [urls["pictures"]]
    assert sorted(await asked("")) == sorted(urls.values()) and await asked("other") == []


async def test_token_ids_are_those_of_the_requests_model(models: Models, site: Site) -> None:
    """A worker's token that another model has is not this one's."""
    sizes = [one.info.vocab_size for one in models.all[:2]]
    assert sizes[0] != sizes[1]

    async def last(request: GenerateRequest) -> AsyncIterator[bytes]:
        choice = ChoiceBody(0, [max(sizes) - 1], "length")
        yield (
            b"data: " + msgspec.json.encode(GenerateAnswer(request.request_id, [choice])) + b"\n\n"
        )

    for worker in site.workers.values():
        worker.script = last
    statuses = [
        (await site.ask("/v1/chat/completions", {**CHAT, "max_tokens": 1, "model": one.name}))[0]
        for one in models.all[:2]
    ]
    assert statuses == [200 if size == max(sizes) else 502 for size in sizes]


async def test_kserve_names_a_model_in_each_call(models: Models) -> None:
    triton = pytest.importorskip("tritonclient.grpc.aio")
    async with fleet_of(models) as (stack, workers), door_of(stack, models) as address:
        client = triton.InferenceServerClient(address)
        text = triton.InferInput("text_input", [1], "BYTES")
        numpy = pytest.importorskip("numpy")
        text.set_data_from_numpy(numpy.array([b"Hello"], dtype=numpy.object_))
        for name in ("text", "lora"):
            assert await client.is_model_ready(name)
            await client.infer(name, [text], parameters=LIMIT)
        assert [call.model for call in workers["text"].calls] == ["", "lora"]
        assert not workers["pictures"].calls
        stack.decode[1].up = False
        assert not await client.is_model_ready("lora") and await client.is_server_ready()
        await client.close()
