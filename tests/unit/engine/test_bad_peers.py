"""What an engine makes of peers and callers that tell it nonsense: one clear error or its own
computation, and it goes on."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from connectors.base import EC_TENSOR, Entry, Tensors
from connectors.config import ECConfig, KVConfig
from connectors.kv.pull import PullKV
from connectors.messages import Held, KVEnd, KVReady
from protocol.types import EncodeRequest, GenerateRequest, RequestOutput
from services.engine.engine import Engine
from tests.conftest import ModelDir
from tests.support.conversations import LONG, asking, picture
from tests.support.engines import engine, request_of
from tests.support.links import BOUND_S, Side
from tests.support.raw_peers import RawProducer
from tests.support.reference import reference_generate

TOKENS = 4
HIDDEN = 128


class Case:
    """An engine that consumes, and whom it asks."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.model = model
        ec = ECConfig("shm", path=str(folder), load_timeout_s=10.0, timeout_s=10.0)
        wanted = KVConfig("shm", path=str(folder), timeout_s=10.0)
        self.engine: Engine = engine(model, parts=("language",), ec=ec, kv=wanted, num_blocks=64)
        kv = self.engine.kv
        assert isinstance(kv, PullKV)
        self.producer = Side(
            "shm", folder, produces=True,
            layout=kv.endpoint()["triptych"]["compatibility"],
            elements=kv.consumer.options.block_bytes // 4,
        )  # fmt: skip
        node = self.producer.node
        node.share("ec", f"{model.name}@test:float32")
        self.impostor = RawProducer(self.producer.node)
        self._number = 0

    def request(self, *content: Any, **fields: Any) -> tuple[GenerateRequest, EncodeRequest]:
        self._number += 1
        name = f"r{self._number}"
        request, encode = request_of(
            self.model, asking(*content), name, max_tokens=TOKENS, ignore_eos=True
        )
        return msgspec.structs.replace(request, **fields), encode

    def run(self, request: GenerateRequest) -> list[RequestOutput]:
        """All outputs of a request, the impostor and the producer being polled."""
        assert self.engine.generate is not None
        outputs = self.engine.generate.add(request)
        while not any(output.finish_reason for output in outputs):
            outputs += self.engine.step()[0]
            self.producer.poll()
            self.answer()
        assert self.engine.generate.check_integrity() == []
        return outputs

    def offer(self, name: str, tensors: Tensors) -> dict[str, Any]:
        """Store an entry, as soon as the one before is read no more."""
        deadline = time.monotonic() + BOUND_S
        while (params := self.producer.ec.offer(name, Entry(tensors, ()))) is None:
            assert time.monotonic() < deadline
            self.producer.poll()
        return params

    def answer(self) -> None:
        """What the impostor says; a test replaces it."""
        self.impostor.poll()

    def text(self, **fields: Any) -> list[int]:
        outputs = self.run(self.request(LONG, **fields)[0])
        return [token for output in outputs for token in output.token_ids]

    def close(self) -> None:
        self.impostor.close()
        self.engine.close()
        self.producer.close()


@pytest.fixture(scope="module")
def case(model_dir: ModelDir, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    case = Case(model_dir("qwen2_5_vl"), tmp_path_factory.mktemp("shm"))
    yield case
    case.answer = case.impostor.poll  # type: ignore[method-assign]
    assert case.text() == reference_generate(case.model, asking(LONG), TOKENS, ignore_eos=True)
    case.close()


ENTRIES: dict[str, Tensors] = {
    "too wide": {EC_TENSOR: torch.zeros(64, HIDDEN + 1)},
    "too narrow": {EC_TENSOR: torch.zeros(64, HIDDEN // 2)},
    "flat": {EC_TENSOR: torch.zeros(64 * HIDDEN)},
    "too few rows": {EC_TENSOR: torch.zeros(63, HIDDEN)},
    "another dtype": {EC_TENSOR: torch.zeros(64, HIDDEN, dtype=torch.bfloat16)},
    "as many bytes, more numbers": {EC_TENSOR: torch.zeros(64, 2 * HIDDEN, dtype=torch.float16)},
    "as many bytes, two tensors": {
        EC_TENSOR: torch.zeros(64, HIDDEN // 2),
        "deepstack_00": torch.zeros(64, HIDDEN // 2),
    },
    "another name": {EC_TENSOR: torch.zeros(64, HIDDEN), "": torch.zeros(64, 0)},
    "one tensor too many": {EC_TENSOR: torch.zeros(64, HIDDEN), "deepstack_00": torch.zeros(64, 8)},
}


@pytest.mark.parametrize("index", range(len(ENTRIES)), ids=ENTRIES.keys())
def test_embeddings_of_another_shape_fail_one_request(case: Case, index: int) -> None:
    entry = list(ENTRIES.values())[index]
    request, encode = case.request(picture(1000 + index), "What is in this image?")
    name = encode.items[0].mm_hash
    params = case.offer(name, entry)
    (output,) = case.run(msgspec.structs.replace(request, ec_transfer_params={name: params}))
    assert output.error is not None and output.error.status == 503
    assert "embeddings" in output.error.message


@pytest.mark.parametrize(
    "params",
    [5, [], "x", {"peer_host": 5}, {"peer_host": "no host!", "peer_port": 1},
     {"peer_host": "127.0.0.1", "peer_port": 99_999}, {"peer_host": "", "peer_port": -1}],
)  # fmt: skip
def test_params_that_make_no_sense_fail_one_request(case: Case, params: Any) -> None:
    request, encode = case.request(picture(1), "What is in this image?", deadline_s=0.5)
    name = encode.items[0].mm_hash
    (output,) = case.run(msgspec.structs.replace(request, ec_transfer_params={name: params}))
    assert output.error is not None and output.error.status in (503, 504)


@pytest.mark.parametrize("name", ["", "x" * 5000])
def test_a_name_that_no_picture_has_is_refused(case: Case, name: str) -> None:
    request, _ = case.request(picture(1), "What is in this image?")
    (item,) = request.mm_items
    named = msgspec.structs.replace(request, mm_items=[msgspec.structs.replace(item, mm_hash=name)])
    (output,) = case.run(named)
    assert output.error is not None and output.error.status == 400


def test_a_name_that_leads_out_of_the_folder_is_refused(
    model_dir: ModelDir, tmp_path: Path
) -> None:
    ec = ECConfig("shared_storage", path=str(tmp_path))
    reader = engine(model_dir("qwen2_5_vl"), parts=("language",), ec=ec, num_blocks=64)
    request, _ = request_of(model_dir("qwen2_5_vl"), asking(picture(1)), "r", max_tokens=1)
    (item,) = request.mm_items
    assert reader.generate is not None
    for name in ("../escape", "/etc/passwd", "a/../..", "*", ".owner", "a\0"):
        outside = msgspec.structs.replace(item, mm_hash=name)
        (output,) = reader.generate.add(msgspec.structs.replace(request, mm_items=[outside]))
        assert output.error is not None and output.error.status == 400
    assert reader.check_integrity() == []
    reader.close()


ENDS = {
    "tokens that the vocabulary has not": lambda r, n: KVEnd(r, 1, n, 0, {0: [10**6]}),
    "more tokens than the prompt": lambda r, n: KVEnd(r, 1, n + 16, 0, {0: [5]}),
    "two first tokens of a choice": lambda r, n: KVEnd(r, 1, n, 0, {0: [5, 6]}),
    "no first token of a choice": lambda r, n: KVEnd(r, 1, n, 0, {0: []}),
    "one too many of another choice": lambda r, n: KVEnd(r, 1, n, 0, {0: [5], 7: [5, 5]}),
    "no tokens": lambda r, n: KVEnd(r, 1, 0, 0, {0: [5]}),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
def test_kv_of_another_prompt_is_computed_here(
    case: Case, end: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Everything is copied and confirmed by then: it is still not used."""
    request, _ = case.request(LONG)
    tokens = len(request.token_ids)
    blocks = -(-tokens // 16)
    name = request.request_id

    def answer() -> None:
        asked = case.impostor.took("KVWant")
        if asked is not None:
            ready = KVReady(name, 1, 0, [0] * blocks)
            case.impostor.send(asked.identity, ready, end(name, tokens))
        fetched = case.impostor.took("KVFetched")
        if fetched is not None:
            case.impostor.send(fetched.identity, Held(fetched.message["query"], True))

    case.answer = answer  # type: ignore[method-assign]
    params = case.impostor.ref(name, 0).to_params()
    before = case.engine.counters()["kv_failed"]
    outputs = case.run(msgspec.structs.replace(request, kv_transfer_params=params))
    assert case.engine.counters()["kv_failed"] == before + 1
    assert "do not belong to a prompt" in caplog.text
    got = [token for output in outputs for token in output.token_ids]
    assert got == reference_generate(case.model, asking(LONG), TOKENS, ignore_eos=True)
