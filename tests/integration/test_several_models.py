"""Several models behind one proxy that renders: workers of each, found by lists or by a master."""

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ModelDir
from tests.support import waiting
from tests.support.clients import Asked, all_up, tokens_of_models
from tests.support.conversations import picture_cases, text_cases
from tests.support.lora import merged_generate, write_adapter
from tests.support.pooling_models import embedding_model, vector_of
from tests.support.reference import reference_generate
from tests.support.stack import Process, Stack, call, idle, metric, proxy, running

TOKENS = 8
WAYS = ("lists", "master")
WORKERS = 5


def until(true: Any) -> None:
    waiting.until(true, 20.0)


@dataclass
class Site:
    """`single`: a proxy of the model tiny alone, before its workers."""

    stack: Stack
    models: dict[str, Path]
    adapter: Path
    workers: dict[str, Process]
    proxies: dict[str, Process]
    single: Process

    def expected(self, asked: Asked) -> list[list[int]]:
        return [
            merged_generate(self.models["text"], self.adapter, messages, TOKENS)
            if name == "lora"
            else reference_generate(self.models[name], messages, TOKENS, ignore_eos=True)
            for messages, name in asked
        ]


@pytest.fixture(scope="module")
def site(model_dir: ModelDir, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """E, P and D of a model of pictures; one worker of a text model with an adapter; one that
    prefills for a model of vectors."""
    root = tmp_path_factory.mktemp("several")
    models = {
        "tiny": model_dir("qwen2_5_vl"),
        "text": model_dir("qwen3"),
        "vectors": embedding_model(model_dir("qwen3_vl"), root / "vectors"),
    }
    adapter = write_adapter(models["text"], root / "lora", seed=1)
    with running(models["tiny"]) as stack:
        master = stack.start_plain("services.master", "--log-level", "warning")
        master.wait_ready()
        joined = ("--master-url", master.url, "--heartbeat-interval", "0.2")
        lora = ("--enable-lora", "--max-lora-rank", "4", "--lora-modules", f"lora={adapter}")
        roles = {
            "encode": ("services.encoder", "tiny", ()),
            "prefill": ("services.prefill", "tiny", ()),
            "decode": ("services.decode", "tiny", ()),
            "text": ("services.decode", "text", lora),
            "vectors": ("services.prefill", "vectors", ()),
        }
        workers = {
            key: stack.start(module, *joined, *flags, models={name: models[name]})
            for key, (module, name, flags) in roles.items()
        }
        for worker in workers.values():
            worker.wait_ready()
        encode, prefill, decode, text, vectors = workers.values()
        probing = ("--probe-interval", "0.2", "--failover-wait", "3")
        proxies = {
            "lists": stack.start(
                "proxy", *probing, "--encode-servers-urls", encode.url,
                "--prefill-servers-urls", f"{vectors.url},{prefill.url}",
                "--decode-servers-urls", f"{text.url},{decode.url}",
                models=models,
            ),
            "master": stack.start("proxy", *probing, "--master-url", master.url, models=models),
        }  # fmt: skip
        for one in proxies.values():
            one.wait_ready()
            until(lambda one=one: all_up(one, WORKERS) and "lora" in listed(one))
        single = proxy(stack, [encode], [prefill], [decode])
        yield Site(stack, models, adapter, workers, proxies, single)
        for worker in workers.values():
            idle(worker)
        assert set(stack.stop()) == {0}


def listed(server: Process) -> dict[str, str | None]:
    """Names in /v1/models with their parents."""
    return {card["id"]: card["parent"] for card in call(f"{server.url}/v1/models")[1]["data"]}


@pytest.mark.parametrize("way", WAYS)
def test_tokens_are_those_of_each_model(way: str, site: Site) -> None:
    """Pictures, text and an adapter at once; the second time out of the caches."""
    pictures: Asked = [(case, "tiny") for case in (*picture_cases()[:3], *text_cases()[:1])]
    texts: Asked = [(case, name) for case in text_cases()[:3] for name in ("text", "lora")]
    expected = site.expected([*pictures, *texts])
    for _ in range(2):
        assert tokens_of_models(site.proxies[way], [*pictures, *texts], TOKENS) == expected
    assert tokens_of_models(site.single, pictures, TOKENS) == expected[: len(pictures)]
    counters = {name: idle(worker)["counters"] for name, worker in site.workers.items()}
    assert counters["decode"]["kv_fetched"] > 0, "prefill hands over to its own model's worker"
    placed = metric(site.proxies[way], 'proxy:placements_total{by="master"}')
    assert (placed > 0) == (way == "master")


@pytest.mark.parametrize("way", WAYS)
def test_vectors_are_answered_beside_text(way: str, site: Site) -> None:
    url, ids = f"{site.proxies[way].url}/v1/embeddings", [5, 6, 7]
    status, answer = call(url, {"model": "vectors", "input": ids})
    assert status == 200, answer
    expected = vector_of(site.models["vectors"], ids)
    assert answer["data"][0]["embedding"] == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert call(url, {"model": "text", "input": ids})[1]["error"]["code"] == "unsupported_task"


@pytest.mark.parametrize("way", WAYS)
def test_models_and_adapters_are_listed(way: str, site: Site) -> None:
    server = site.proxies[way]
    assert listed(server) == {"tiny": None, "text": None, "lora": "text", "vectors": None}
    body = {"model": "other", "messages": [{"role": "user", "content": "Hello"}]}
    status, answer = call(f"{server.url}/v1/chat/completions", body)
    assert (status, answer["error"]["code"]) == (404, "model_not_found")
    assert call(f"{server.url}/health")[1]["problems"] == []


def test_a_model_without_workers_leaves_the_others_alone(site: Site) -> None:
    worker, asked = site.workers["text"], [(text_cases()[0], "text")]
    expected = site.expected([*asked, (picture_cases()[0], "tiny")])
    worker.process.send_signal(signal.SIGKILL)
    worker.process.wait(10)
    body = {"model": "text", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
    for server in site.proxies.values():

        def refused(server: Process = server) -> bool:
            status, answer = call(f"{server.url}/v1/chat/completions", body)
            return (status, answer["error"]["code"]) == (503, "no_worker")

        until(refused)
        assert tokens_of_models(server, [(picture_cases()[0], "tiny")], TOKENS) == expected[1:]
        until(lambda server=server: models_of(server)["text"] == "down")
        status, health = call(f"{server.url}/health")
        assert (status, health["models"]["tiny"]) == (200, "up")
    worker.restart()
    for server in site.proxies.values():
        until(lambda server=server: models_of(server)["text"] == "up")
        assert tokens_of_models(server, asked, TOKENS) == expected[:1]


def models_of(server: Process) -> dict[str, str]:
    """The state of each model, as /health tells it."""
    found: dict[str, str] = call(f"{server.url}/health")[1]["models"]
    return found
