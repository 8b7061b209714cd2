"""Pools that hold one request, and many requests at once: all are answered, and rightly."""

from pathlib import Path

import pytest

from tests.conftest import ModelDir
from tests.support.clients import all_tokens, complete
from tests.support.conversations import LONG, asking, picture
from tests.support.reference import Messages, reference_generate
from tests.support.stack import call, idle, proxy, running
from tests.support.transport_flags import TRANSPORTS, flags_of, need

REQUESTS = 10
TOKENS = 6
ROWS = 64  # embeddings of a picture
ROW_BYTES = 128 * 4  # of the tiny model, fp32
FILE_HEADERS = 1024  # of two files; memory has none


@pytest.fixture(scope="module")
def cases() -> list[Messages]:
    return [asking(picture(100 + i), "or", picture(200 + i % 3), LONG) for i in range(REQUESTS)]


@pytest.fixture(scope="module")
def expected(cases: list[Messages], model_dir: ModelDir) -> list[list[int]]:
    """Once for all transports."""
    return [reference_generate(model_dir("qwen2_5_vl"), case, TOKENS) for case in cases]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_many_requests_through_pools_for_one(
    transport: str,
    cases: list[Messages],
    expected: list[list[int]],
    model_dir: ModelDir,
    tmp_path: Path,
) -> None:
    """Two pictures each; EC store, embedding cache and both KV pools have room for one request.
    Prefill keeps what its pool loses in host memory and on disk."""
    need(transport)
    with running(model_dir("qwen2_5_vl")) as stack:
        size = 2 * ROWS * ROW_BYTES
        blocks = ("--num-gpu-blocks-override", "16", "--max-num-batched-tokens", "64")
        config = flags_of(transport, tmp_path, ec_buffer_size=size + FILE_HEADERS)
        held = ("--embedding-cache-bytes", str(size))
        encoder = stack.start("services.encoder", *config)
        tiers = ("--kv-host-memory", "0.001", "--kv-disk", "0.01", "--kv-disk-path", str(tmp_path))
        prefill = stack.start("services.prefill", *config, *held, *blocks, *tiers)
        decode = stack.start("services.decode", *config, *held, *blocks)
        for worker in (encoder, prefill, decode):
            worker.wait_ready()
        server = proxy(stack, [encoder], [prefill], [decode])
        usage = complete(server, cases[0], max_tokens=TOKENS)["usage"]
        assert 8 * 16 < usage["total_tokens"] <= 16 * 16
        assert all_tokens(server, cases, max_tokens=TOKENS) == expected
        for worker in (encoder, prefill, decode):
            idle(worker)
        counters = call(f"{decode.url}/integrity")[1]["counters"]
        assert counters["kv_fetched"] == 1 + REQUESTS
        assert counters["kv_failed"] == 0
        kept = call(f"{prefill.url}/integrity")[1]["counters"]
        assert kept["kv_host_offloaded_blocks"] > 16 and kept["kv_disk_failed_blocks"] == 0
        assert list((tmp_path / "kv-blocks").glob("*.kv"))
