"""Embeddings on their way into an engine: from its own encoder, through a store that is too small
for all of them; and from a file that vLLM has written."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from connectors.base import Entry
from connectors.config import ECConfig, KVConfig
from connectors.ec.arena import ArenaEC
from connectors.ec.files import FILE_NAME
from connectors.ec.load import ArenaLoad
from connectors.factory import Connectors
from services.engine.attention.kv_cache import DTYPES
from services.engine.model.vision import VisionModel
from tests.conftest import ModelDir
from tests.support.conversations import asking, picture
from tests.support.engines import engine, request_of, run
from tests.support.links import need, rows
from tests.support.reference import reference_generate
from tests.support.waiting import until

TOKENS = 4
ENTRY = 64 * 128 * 4  # bytes of a picture's embeddings


@pytest.mark.parametrize("transport", ["local", "shm", "shared_storage", "nixl", "ucx"])
def test_an_engine_that_does_it_all_with_a_store_for_one_picture(
    transport: Any, model_dir: ModelDir, tmp_path: Path
) -> None:
    """Several requests at once, one with two pictures: encoding waits for those that load, and what
    is needed now takes the place of what waits. No lease has to lapse for that."""
    if transport != "local":
        need(transport)
    model = model_dir("qwen2_5_vl")
    cases = [asking(picture(seed), "What is in this image?") for seed in range(70, 74)]
    cases.append(asking(picture(75), "First this,", picture(76), "then", picture(70), "that."))
    ec = ECConfig(
        transport, ec_buffer_size=ENTRY + 512, landing_size=4 * ENTRY, lease_s=600.0,
        load_timeout_s=20.0, path=str(tmp_path),
    )  # fmt: skip
    worker = engine(model, ec=ec)
    try:
        requests = [
            request_of(model, case, f"r{i}", max_tokens=TOKENS, ignore_eos=True)
            for i, case in enumerate(cases)
        ]
        tokens = run(worker, requests)
        expected = [reference_generate(model, case, TOKENS, ignore_eos=True) for case in cases]
        assert [tokens[f"r{i}", 0] for i in range(len(cases))] == expected
        assert worker.counters()["mm_encoded"] == 6
        assert worker.check_integrity() == []
    finally:
        worker.close()


def test_a_file_of_vllm_with_all_levels_side_by_side(model_dir: ModelDir, tmp_path: Path) -> None:
    """Qwen3-VL: one tensor, the main embeddings first, then those for early layers."""
    model = model_dir("qwen3_vl")
    case = asking(picture(80), "What is in this image?")
    generate, encode = request_of(model, case, "r", max_tokens=TOKENS, ignore_eos=True)
    vision = VisionModel(model, DTYPES["float32"], "cpu", 1 << 24)
    (tensors,) = vision.encode([vision.prepare(encode.items[0])])
    assert isinstance(tensors, dict) and len(tensors) > 1
    folder = tmp_path / encode.items[0].mm_hash
    folder.mkdir()
    joined = torch.cat(
        [tensors[name] for name in sorted(tensors, key=lambda n: n != "ec_cache")], 1
    )
    save_file({"ec_cache": joined.contiguous()}, folder / FILE_NAME)
    ec = ECConfig("shared_storage", path=str(tmp_path), load_unchecked=True)
    worker = engine(model, parts=("language",), ec=ec, num_blocks=64)
    try:
        tokens = run(worker, [(generate, encode)])
        assert tokens["r", 0] == reference_generate(model, case, TOKENS, ignore_eos=True)
        assert worker.check_integrity() == []
    finally:
        worker.close()


def test_an_engine_that_ends_in_a_read_tells_its_producer(
    model_dir: ModelDir, tmp_path: Path
) -> None:
    """KV and EC share what carries that: neither may close it before the other has spoken."""
    need("ucx")
    ec = ECConfig("ucx", ec_buffer_size=1 << 20, landing_size=1 << 20, path=str(tmp_path))
    worker = engine(
        model_dir("qwen2_5_vl"), parts=("language",), ec=ec, kv=KVConfig("ucx"), num_blocks=8
    )
    assert isinstance(worker.ec, ArenaEC)
    compatibility = worker.ec._node.compatibility("ec")
    producer = Connectors(ec, KVConfig()).make_ec(compatibility, produces=True)
    try:
        params = producer.offer("a", Entry(rows(), ()))
        load = worker.ec.fetch("a", params)
        assert isinstance(load, ArenaLoad)

        def reading() -> bool:
            producer.poll()
            worker.ec.poll()
            return load.poll() is None and load._transfer is not None

        # The producer is not polled from here on, so the read cannot end by itself.
        until(reading)
        load.cancel()
        assert worker.ec.active
    finally:
        worker.close()
    until(lambda: (producer.poll(), not producer.active)[1])
    assert producer.check_integrity() == []
    producer.close()
