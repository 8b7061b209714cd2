"""Our workers driven the way vLLM's EPD proxies drive theirs: chat requests and handles only."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.conftest import ModelDir
from tests.support.clients import body_of
from tests.support.clips import clip
from tests.support.conversations import LONG, asking, picture
from tests.support.reference import Messages, reference_generate
from tests.support.stack import Process, Stack, call, idle, running
from tests.support.transport_flags import TRANSPORTS, flags_of, need
from tests.support.vllm_proxy import ask

TOKENS = 10
CHAT = "/v1/chat/completions"
REMOTE_DECODE = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


@dataclass
class Workers:
    stack: Stack
    encode: Process
    prefill: Process
    decode: Process


@pytest.fixture(scope="module", params=list(TRANSPORTS))
def workers(
    request: pytest.FixtureRequest, model_dir: ModelDir, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Workers]:
    need(request.param)
    flags = flags_of(request.param, tmp_path_factory.mktemp("shared"))
    with running(model_dir("qwen2_5_vl")) as stack:
        names = ("encoder", "prefill", "decode")
        started = [stack.start(f"services.{name}", *flags) for name in names]
        for process in started:
            process.wait_ready()
        yield Workers(stack, *started)
        for process in started:
            idle(process)


def prime(workers: Workers, messages: Messages) -> dict[str, Any]:
    """One encode request per picture or clip, the text removed; what the encoders said of them."""
    params: dict[str, Any] = {}
    for message in messages:
        for part in message["content"]:
            if part["type"] != "text":
                alone = [{"role": "user", "content": [part]}]
                answer = ask(workers.encode, body_of(alone, max_tokens=1, stream=False))
                params |= answer["ec_transfer_params"]
    return params


def prefilled(workers: Workers, body: dict[str, Any]) -> dict[str, Any]:
    answer = ask(workers.prefill, {**body, "max_tokens": 1, "kv_transfer_params": REMOTE_DECODE})
    params: dict[str, Any] = answer["kv_transfer_params"]
    assert params["do_remote_prefill"] is True
    assert params["remote_num_tokens"] == answer["usage"]["prompt_tokens"]
    return params


CASES = [
    asking(LONG),
    asking(picture(31), "What is in this image?"),
    asking("Compare", picture(32), "with", picture(33, 320, 200), "please"),
    asking("Watch", clip(34, frames=40, rate=3), "and say"),
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_the_seeds_proxy_gets_the_right_tokens(workers: Workers, case: int) -> None:
    """No `ec_transfer_params` are passed on, the pictures go to every stage, and prefill's token
    is dropped: decode emits it again."""
    messages = CASES[case]
    prime(workers, messages)
    body = body_of(messages, max_tokens=TOKENS, ignore_eos=True)
    params = prefilled(workers, body)
    answer = ask(workers.decode, {**body, "kv_transfer_params": params})
    assert answer["choices"][0]["token_ids"] == reference_generate(
        workers.stack.model, messages, TOKENS, ignore_eos=True
    )
    fetched = call(f"{workers.decode.url}/integrity")[1]["counters"]["kv_fetched"]
    assert fetched >= case + 1


@pytest.mark.parametrize("kind", ["image", "video"])
def test_references_without_media_are_enough(kind: str, workers: Workers) -> None:
    """vLLM's newer proxy sends metadata and handles instead of the media."""
    medium = picture(41) if kind == "image" else clip(41, frames=40, rate=3)
    messages = asking(medium, "What is in this image?")
    entries = prime(workers, messages)
    ((name, entry),) = entries.items()
    assert entry["modality"] == kind and entry["item_indices"] == [0]
    form = f"{kind}_embeds"
    reference = {"type": form, form: entry["metadata"], "uuid": name}
    body = body_of(
        asking("What is in this image?"), max_tokens=TOKENS, ignore_eos=True,
        ec_transfer_params=entries,
    )  # fmt: skip
    body["messages"][0]["content"].insert(0, reference)
    params = prefilled(workers, body)
    answer = ask(workers.decode, {**body, "kv_transfer_params": params})
    assert answer["choices"][0]["token_ids"] == reference_generate(
        workers.stack.model, messages, TOKENS, ignore_eos=True
    )


def test_a_decode_worker_without_kv_prefills_by_itself(workers: Workers) -> None:
    messages = CASES[1]
    entries = prime(workers, messages)
    body = body_of(messages, max_tokens=TOKENS, ignore_eos=True, ec_transfer_params=entries)
    answer = ask(workers.decode, body)
    assert answer["choices"][0]["token_ids"] == reference_generate(
        workers.stack.model, messages, TOKENS, ignore_eos=True
    )


def test_handles_of_nobody_fall_back_to_computing(workers: Workers) -> None:
    """Blocks released, an unknown instance, another model's layout: the answer is still right."""
    messages = CASES[0]
    body = body_of(messages, max_tokens=TOKENS, ignore_eos=True)
    expected = reference_generate(workers.stack.model, messages, TOKENS, ignore_eos=True)
    good = prefilled(workers, body)
    call(f"{workers.prefill.url}/abort_requests", {"request_ids": [good["remote_request_id"]]})
    own = good["triptych"]
    broken = [
        good,
        {**good, "remote_engine_id": "f" * 32},
        {**good, "remote_engine_id": "../escape"},
        {**good, "remote_block_ids": [[99999] * len(good["remote_block_ids"][0])]},
        {**good, "remote_num_tokens": 1},
        {**good, "triptych": {**own, "compatibility": "another model"}},
        {**good, "triptych": {**own, "descriptor": {"shape": [4, 4]}}},
    ]
    for params in broken:
        answer = ask(workers.decode, {**body, "kv_transfer_params": params})
        assert answer["choices"][0]["token_ids"] == expected, params
    status, answer = call(
        workers.decode.url + CHAT, {**body, "kv_transfer_params": {"do_remote_prefill": True}}
    )
    assert status == 400 and answer["error"]["param"] == "kv_transfer_params"
