"""A picture that is sent to an encoder under the name of another one."""

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

ENCODE = "/inference/v1/encode"
GRID, TOKENS = (1, 16, 16), 64


@pytest.fixture(scope="module")
def encoder(model_dir: ModelDir) -> Iterator[Process]:
    with running(model_dir("qwen2_5_vl")) as stack:
        process = stack.start("services.encoder")
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
