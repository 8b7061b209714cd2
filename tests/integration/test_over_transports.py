"""E+P+D over each transport, through real processes: the tokens of `generate()`, nothing left."""

import resource
import urllib.request
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest

from tests.conftest import ModelDir
from tests.support.clients import all_tokens, body_of, tokens
from tests.support.conversations import LONG, asking, picture
from tests.support.reference import reference_generate
from tests.support.stack import Process, Stack, call, idle, proxy, running
from tests.support.transport_flags import TRANSPORTS, flags_of, need

TOKENS = 8
CASES = [
    asking(picture(1), "What is in this image?"),
    asking(picture(2), "First this,", picture(3, 320, 200), "then that.", picture(1), LONG),
    asking(LONG),
    asking(picture(4), "and again", picture(4), "the same?"),
]


@lru_cache
def expected_of(model: Path, case: int) -> list[int]:
    return reference_generate(model, CASES[case], TOKENS)


@lru_cache
def few_of(model: Path, seed: int) -> list[int]:
    """The first tokens of what is said of a picture."""
    return reference_generate(model, asking(picture(seed), "What is in this image?"), 4)


@pytest.fixture(scope="module", params=[*TRANSPORTS, "shm staged"])
def way(request: pytest.FixtureRequest) -> list[str]:
    """A transport, and whether KV is staged."""
    transport, *staged = request.param.split()
    need(transport)
    return [transport, *staged]


@pytest.fixture(scope="module")
def transport(way: list[str]) -> str:
    return way[0]


@pytest.fixture(scope="module")
def fleet(
    way: list[str], model_dir: ModelDir, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Stack, Process]]:
    """Two encoders, a prefill and a decode worker behind a proxy."""
    root = tmp_path_factory.mktemp("shared")
    flags = flags_of(way[0], root, staged="staged" in way)
    with running(model_dir("qwen3_vl")) as stack:
        encoders = [stack.start("services.encoder", *flags) for _ in range(2)]
        chunks = ("--max-num-batched-tokens", "96")
        prefill = stack.start("services.prefill", *flags, *chunks)
        decode = stack.start("services.decode", *flags)
        workers = [*encoders, prefill, decode]
        for worker in workers:
            worker.wait_ready()
        yield stack, proxy(stack, encoders, [prefill], [decode])
        for worker in workers:
            idle(worker)
        assert set(stack.stop()) == {0}
        assert not stack.segments.exists()
        assert list(root.iterdir()) == []


def test_tokens_equal_generate(fleet: tuple[Stack, Process]) -> None:
    """Several pictures in a request, one of them in two requests, all at once, twice over."""
    stack, server = fleet
    expected = [expected_of(stack.model, case) for case in range(len(CASES))]
    for _ in range(2):
        assert all_tokens(server, CASES, max_tokens=TOKENS) == expected


def test_many_pictures_one_after_another(fleet: tuple[Stack, Process]) -> None:
    stack, server = fleet
    for seed in range(10, 14):
        case = asking(picture(seed), "What is in this image?")
        assert tokens(server, case, max_tokens=4) == few_of(stack.model, seed)


def test_what_was_moved_is_counted(fleet: tuple[Stack, Process], transport: str) -> None:
    """By connector and transport, in the figures that an operator scrapes."""
    stack, server = fleet
    tokens(server, asking(picture(20), "What is in this image?"), max_tokens=4)
    encoder, _, prefill, decode = stack.processes[:4]
    for worker, connector in ((prefill, "ec"), (decode, "kv")):
        text = scrape(worker)
        labels = (
            f'connector="{connector}",role="{worker.module.split(".")[1]}",transport="{transport}"'
        )
        assert figure(text, "bytes_total", labels) > 0
        assert figure(text, "transfers_total", labels) > 0
        assert figure(text, "seconds_count", labels) == figure(text, "transfers_total", labels)
        copying = figure(text, "copy_seconds_total", labels)
        assert 0 < copying <= figure(text, "seconds_sum", labels)
        assert figure(text, "leases_expired_total", labels) == 0
    assert "transfer_misses_total" in scrape(encoder)
    fetched = kv_counters(stack)
    assert fetched["kv_fetched"] > 0 and fetched["kv_failed"] == 0


def test_a_disk_that_is_full(fleet: tuple[Stack, Process], transport: str) -> None:
    """While no file can be written, a picture gets one clear error and text is computed twice; then
    everything is as before."""
    if transport != "shared_storage":
        pytest.skip("the others write no files")
    stack, server = fleet
    workers = stack.processes[:3]
    seen, unseen = asking(picture(1), "What is in this image?"), asking(picture(60), "And this?")
    expected = [reference_generate(stack.model, case, 4) for case in (seen, unseen)]
    for worker in workers:
        limit_files(worker, 100)
    status, answer = call(f"{server.url}/v1/chat/completions", body_of(unseen, max_tokens=4))
    assert status == 503 and answer["error"]["code"] in ("transfer_failed", "embedding_lost")
    for worker in stack.processes[:4]:
        idle(worker)  # what was under way for it has failed by then too
    failed = kv_counters(stack)["kv_failed"]
    assert tokens(server, seen, max_tokens=4) == expected[0], "its embedding is there already"
    assert kv_counters(stack)["kv_failed"] == failed + 1
    for worker in workers:
        limit_files(worker, resource.RLIM_INFINITY)
    assert tokens(server, unseen, max_tokens=4) == expected[1]
    assert kv_counters(stack)["kv_failed"] == failed + 1


def limit_files(worker: Process, nbytes: int) -> None:
    """Let a worker's engine write no larger files from here on."""
    resource.prlimit(worker.engine_pid, resource.RLIMIT_FSIZE, (nbytes, resource.RLIM_INFINITY))


def kv_counters(stack: Stack) -> dict[str, float]:
    """Of the decode worker."""
    counters: dict[str, float] = call(f"{stack.processes[3].url}/integrity")[1]["counters"]
    return counters


def scrape(worker: Process) -> str:
    with urllib.request.urlopen(f"{worker.url}/metrics", timeout=10) as response:
        return str(response.read().decode())


def figure(text: str, name: str, labels: str) -> float:
    (line,) = [
        line
        for line in text.splitlines()
        if line.startswith(f"triptych:transfer_{name}{{")
        and set(labels.split(",")) <= set(line.split("{")[1].split("}")[0].split(","))
    ]
    return float(line.rpartition(" ")[2])
