"""A picture that is sent to an encoder under the name of another one."""

import re
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from protocol.generate import encode_encode
from protocol.types import EncodeItem, EncodeRequest
from services.frontend.render import Frontend
from tests.conftest import ModelDir
from tests.support.conversations import picture
from tests.support.engines import png
from tests.support.frontend_helpers import frontend
from tests.support.stack import Process, call, idle, running
from tests.support.transport_flags import flags_of

ENCODE = "/inference/v1/encode"
GRID, TOKENS = (1, 16, 16), 64


@pytest.fixture(scope="module")
def encoder(model_dir: ModelDir) -> Iterator[Process]:
    """Its store holds one embedding; half a second later another may take its place."""
    extra = {"ec_lease_duration": 0.5}
    with running(model_dir("qwen2_5_vl")) as stack:
        one = flags_of("shm", model_dir("qwen2_5_vl"), ec_buffer_size=TOKENS * 128 * 4,
                       ec_connector_extra_config=extra)  # fmt: skip
        process = stack.start("services.encoder", *one)
        process.wait_ready()
        yield process
        idle(process)
        assert set(stack.stop()) == {0}


@pytest.fixture(scope="module")
def names(model_dir: ModelDir) -> Frontend:
    return frontend(model_dir("qwen2_5_vl"))


def sent(encoder: Process, *items: tuple[str, bytes | None]) -> tuple[int, Any]:
    asked = [EncodeItem(name, "image", TOKENS, GRID, data) for name, data in items]
    return call(f"{encoder.url}{ENCODE}", encode_encode(EncodeRequest("r", asked)))


def pictures(seed: int, size: int = 224) -> tuple[bytes, bytes]:
    """(hers, his)"""
    return png(picture(seed, size, size)), png(picture(seed + 1, size, size))


@pytest.mark.parametrize("kind", ["small", "large"])
def test_it_is_refused_and_nothing_is_kept_under_the_name(
    encoder: Process, names: Frontend, kind: str
) -> None:
    hers, his = pictures(10 if kind == "small" else 20)
    if kind == "large":  # hashed in a thread
        his += bytes(1 << 17)
    victim = names.name_of(hers)
    status, answer = sent(encoder, (names.name_of(his), his), (victim, his))
    assert status == 400 and answer["error"]["code"] == "mm_hash_mismatch", answer
    assert answer["error"]["param"] == "items[1].mm_hash"
    _, answer = sent(encoder, (victim, None))
    assert answer["outputs"][0]["missing"]


def test_under_its_own_name_it_is_encoded_and_found_again(
    encoder: Process, names: Frontend
) -> None:
    hers, _ = pictures(30)
    name = names.name_of(hers)
    status, answer = sent(encoder, (name, hers))
    assert status == 200 and answer["outputs"][0]["params"], answer
    _, answer = sent(encoder, (name, None))
    assert answer["outputs"][0]["cached"]
    call(f"{encoder.url}/reset_encoder_cache", b"")


def test_one_whose_embedding_is_gone_is_encoded_again_without_its_bytes(
    encoder: Process, names: Frontend
) -> None:
    """But for an operator who has the encoder forget all, or its pictures."""
    hers, his = pictures(40)
    name = names.name_of(hers)
    for data in (hers, his):
        _, answer = sent(encoder, (names.name_of(data), data))
        assert answer["outputs"][0]["params"]
    encoded = counters(encoder)["mm_encoded"]
    _, answer = sent(encoder, (name, None))
    assert answer["outputs"][0]["params"] and not answer["outputs"][0].get("cached")
    assert counters(encoder)["mm_encoded"] == encoded + 1
    with urllib.request.urlopen(f"{encoder.url}/metrics", timeout=10) as metrics:
        assert re.search(rb'media_cache_hits_total{[^}]*role="encode"} 1.0', metrics.read())
    for route in ("reset_mm_cache", "reset_encoder_cache"):
        for data in (hers, his):
            sent(encoder, (names.name_of(data), data))
        call(f"{encoder.url}/{route}", b"")
        _, answer = sent(encoder, (name, None))
        assert answer["outputs"][0]["missing"]


def counters(encoder: Process) -> Any:
    return call(f"{encoder.url}/integrity")[1]["counters"]
