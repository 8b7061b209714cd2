"""LoRA adapters through real processes: tokens of the merged model on every topology, and adapters
that come and go while requests are served."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ModelDir
from tests.support.clients import Asked, tokens_of_models
from tests.support.conversations import LONG, asking, picture, picture_cases
from tests.support.lora import merged_generate, write_adapter
from tests.support.reference import reference_generate
from tests.support.stack import Process, Stack, call, idle, proxy, running
from tests.support.waiting import until

TOKENS = 8
ADMIN = {"x-api-key": "root"}
WAIT_S = 10.0


@dataclass
class Fleet:
    stack: Stack
    folders: dict[str, Path]
    workers: dict[str, Process]
    proxies: dict[str, Process]

    def expected(self, asked: Asked) -> list[list[int]]:
        path = self.stack.model
        return [
            merged_generate(path, self.folders[name], messages, TOKENS)
            if name in self.folders
            else reference_generate(path, messages, TOKENS, ignore_eos=True)
            for messages, name in asked
        ]

    def operate(self, path: str, **body: str) -> tuple[int, Any]:
        """At the proxy that has a master, with the admin key."""
        return call(self.proxies["e+p+d"].url + path, body, headers=ADMIN)


def listed(server: Process) -> dict[str, str | None]:
    """Names in /v1/models with their parents."""
    _, answer = call(f"{server.url}/v1/models")
    return {card["id"]: card["parent"] for card in answer["data"]}


@pytest.fixture(scope="module")
def fleet(model_dir: ModelDir, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """The adapter a is there from the start, b is loaded by tests."""
    path, folder = model_dir("qwen2_5_vl"), tmp_path_factory.mktemp("adapters")
    folders = {
        "a": write_adapter(path, folder / "a", seed=1),
        "b": write_adapter(path, folder / "b", seed=2, rank=2, targets=("q_proj", "v_proj")),
    }
    with running(path) as stack:
        master = stack.start_plain("services.master", "--log-level", "warning")
        master.wait_ready()
        flags = (
            "--enable-lora", "--max-lora-rank", "4", "--max-loras", "2",
            "--lora-modules", f"a={folders['a']}",
        )  # fmt: skip
        registered = ("--master-url", master.url, "--heartbeat-interval", "0.2")
        workers = {
            name: stack.start(f"services.{name}", *flags, *more)
            for name, more in {
                "encoder": registered, "prefill": registered, "decode": registered, "pdfusion": ()
            }.items()
        }  # fmt: skip
        for worker in workers.values():
            worker.wait_ready()
        encode, decode, one = workers["encoder"], workers["decode"], workers["pdfusion"]
        by_master = stack.start("proxy", "--master-url", master.url, "--admin-api-key", "root")
        by_master.wait_ready()
        proxies = {
            "e+p+d": by_master,
            "e+pd": proxy(stack, [encode], [], [decode]),
            "one process": proxy(stack, [one], [], [one], "--admin-api-key", "root"),
        }
        until(lambda: "a" in listed(by_master), WAIT_S)
        yield Fleet(stack, folders, workers, proxies)
        for worker in workers.values():
            idle(worker)
        assert set(stack.stop()) == {0}


@pytest.mark.parametrize("topology", ["e+p+d", "e+pd", "one process"])
def test_tokens_equal_the_merged_model(topology: str, fleet: Fleet) -> None:
    """Twice, the second time out of every cache, which one adapter does not share with another."""
    server = fleet.proxies[topology]
    asked = [(case, name) for case in picture_cases()[:3] for name in ("tiny", "a")]
    expected = fleet.expected(asked)
    for _ in range(2):
        assert tokens_of_models(server, asked, TOKENS) == expected
    assert listed(server) == {"tiny": None, "a": "tiny"}


def test_kv_of_an_adapter_is_handed_over(fleet: Fleet) -> None:
    def fetched() -> float:
        return float(idle(fleet.workers["decode"])["counters"]["kv_fetched"])

    before = fetched()
    asked = [(asking(f"{LONG} Told anew.", picture(77)), "a")]
    assert tokens_of_models(fleet.proxies["e+p+d"], asked, TOKENS) == fleet.expected(asked)
    assert fetched() > before


def test_adapters_come_and_go(fleet: Fleet) -> None:
    server = fleet.proxies["e+p+d"]
    asked = [(picture_cases()[0], "b")]
    missing = call(f"{server.url}/v1/chat/completions", {"model": "b", "messages": []})
    assert missing[0] == 404
    loading = {"lora_name": "b", "lora_path": str(fleet.folders["b"])}
    status, answer = fleet.operate("/v1/load_lora_adapter", **loading)
    assert status == 200, answer
    assert len(answer["workers"]) == 3
    assert listed(server)["b"] == "tiny"
    until(lambda: "b" in listed(fleet.workers["decode"]), WAIT_S)
    assert tokens_of_models(server, asked, TOKENS) == fleet.expected(asked)
    status, answer = fleet.operate("/v1/unload_lora_adapter", lora_name="b")
    assert status == 200, answer
    assert "b" not in listed(server)
    # Other weights by the same name: nothing of the first is reused.
    other = write_adapter(
        fleet.stack.model, fleet.folders["b"].with_name("b2"), seed=9, rank=2, targets=("o_proj",)
    )
    status, answer = fleet.operate("/v1/load_lora_adapter", lora_name="b", lora_path=str(other))
    assert status == 200, answer
    fleet.folders["b"] = other
    assert tokens_of_models(server, asked, TOKENS) == fleet.expected(asked)
    fleet.operate("/v1/unload_lora_adapter", lora_name="b")


def test_rtp_llms_update_loads_too(fleet: Fleet) -> None:
    server = fleet.proxies["one process"]
    wanted = {"peft_info": {"lora_info": {"b": str(fleet.folders["b"])}}}
    assert call(f"{server.url}/update", wanted, headers=ADMIN)[0] == 200
    asked = [(picture_cases()[1], name) for name in ("b", "a", "tiny")]
    assert tokens_of_models(server, asked, TOKENS) == fleet.expected(asked)


@pytest.mark.parametrize(
    ("revision", "status", "code"), [("", 404, "model_not_found"), ("r", 503, "adapter_missing")]
)
def test_a_request_whose_adapter_is_gone(
    revision: str, status: int, code: str, fleet: Fleet
) -> None:
    """Another worker may have the adapter with which the prompt was rendered."""
    body = {"token_ids": [5], "model": "gone", "adapter_revision": revision}
    found, answer = call(f"{fleet.workers['decode'].url}/inference/v1/generate", body)
    assert (found, answer["error"]["code"]) == (status, code)


@pytest.mark.parametrize(
    ("name", "folder", "why"),
    [
        ("x", "nowhere", "is not a folder on this worker's machine"),
        ("x", "empty", "adapter_config.json"),
        ("x", "n" * 300, "File name too long"),
        ("x", "nowhere\0", "is not a folder"),
        ("x", "wide", "its rank 8 is above --max-lora-rank 4"),
        ("tiny", "a", "the model's own name"),
    ],
)
def test_an_operator_hears_why_an_adapter_is_refused(
    name: str, folder: str, why: str, fleet: Fleet, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    write_adapter(fleet.stack.model, tmp_path / "wide", seed=3, rank=8)
    path = fleet.folders["a"] if folder == "a" else tmp_path / folder
    body = {"lora_name": name, "lora_path": str(path)}
    status, answer = call(f"{fleet.workers['decode'].url}/v1/load_lora_adapter", body)
    assert status == 400
    assert why in answer["error"]["message"]
