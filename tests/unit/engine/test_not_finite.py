"""Requests for which a model's answer is not finite numbers, and the KV that they leave."""

from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from protocol.registry import Rates
from protocol.types import GenerateRequest, RequestOutput, SamplingParams
from services.engine.engine import Engine
from services.engine.scheduling.rates import RateMeter
from tests.conftest import ModelDir
from tests.support.conversations import LONG, asking
from tests.support.engines import engine, request_of, run
from tests.support.tiered_engines import BLOCK, MIB, opened, tier
from tests.support.tiny_models import build

NAN = float("nan")
BROKEN = 150  # a token without an embedding
HEAD = [5 + number for number in range(BLOCK)]
PROMPT = [*[token + 20 for token in HEAD], BROKEN, *range(50, 50 + 3 * BLOCK)]


def without(token: int, folder: Path) -> Path:
    """A model whose embedding of `token` is not finite."""
    model = build("llama", folder / "broken")
    weights = load_file(model / "model.safetensors")
    weights["model.embed_tokens.weight"][token] = NAN
    save_file(weights, model / "model.safetensors", {"format": "pt"})
    return model


def asked(name: str, prompt: list[int]) -> GenerateRequest:
    return GenerateRequest(name, prompt, SamplingParams(max_tokens=2, ignore_eos=True))


def serve(worker: Engine, *requests: GenerateRequest) -> list[RequestOutput]:
    """All that they put out; the books are right afterwards."""
    assert worker.generate is not None
    outputs = [output for one in requests for output in worker.generate.add(one)]
    while len(worker.generate) or worker.generate.tiers.active:
        outputs += worker.step()[0]
    assert worker.check_integrity() == []
    return outputs


def known(worker: Engine) -> int:
    assert worker.generate is not None
    return len(worker.generate.scheduler.blocks.known())


def test_broken_kv_is_not_found_again(tmp_path: Path) -> None:
    """Also that of steps before the one that failed. The prefixes of others stay."""
    worker = engine(without(BROKEN, tmp_path), max_num_batched_tokens=BLOCK, block_size=BLOCK)
    serve(worker, asked("good", [*HEAD, 40]))
    before = known(worker)
    for name in ("bad", "again"):
        (failed,) = serve(worker, asked(name, PROMPT))
        assert failed.error is not None and "not finite" in failed.error.message
        assert known(worker) == before == 1
    assert worker.counters()["cached_tokens"] == 0
    worker.close()


def test_broken_kv_is_not_found_in_a_tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it came when its request ended before a token of it was drawn."""
    # An engine for which any tier is worth its while.
    monkeypatch.setattr(RateMeter, "rates", lambda self: Rates(prefill_ms_per_token=50.0))
    worker = opened(without(BROKEN, tmp_path), max_num_batched_tokens=BLOCK, kv_host_bytes=8 * MIB)
    assert worker.generate is not None
    assert worker.generate.add(asked("aborted", PROMPT)) == []
    for _ in range(3):
        worker.step()
    worker.generate.abort(["aborted"])
    serve(worker)
    host = tier(worker, "host")
    assert len(host.shelf) == known(worker) == 3
    (failed,) = serve(worker, asked("bad", PROMPT))
    assert failed.error is not None and "not finite" in failed.error.message
    assert len(host.shelf) == known(worker) == 0
    worker.close()


def test_an_engine_ends_a_request_whose_logits_are_not_finite(
    model_dir: ModelDir, tmp_path: Path
) -> None:
    path = model_dir("llama")
    good, encode = request_of(path, asking(LONG), "good", max_tokens=5, ignore_eos=True)
    expected = run(engine(path), [(good, encode)])
    unused = min(set(range(4, 200)) - {*good.token_ids, *expected["good", 0]})
    worker = engine(without(unused, tmp_path))
    bad = GenerateRequest("bad", [*good.token_ids[:20], unused], good.sampling)
    assert worker.add(good) == worker.add(bad) == []
    outputs = [output for _ in range(5) for output in worker.step()[0]]
    (failed,) = [output for output in outputs if output.request_id == "bad"]
    assert failed.error is not None and "not finite" in failed.error.message
    assert failed.token_ids == []
    told = [token for output in outputs if output is not failed for token in output.token_ids]
    assert told == expected["good", 0]
    assert worker.check_integrity() == []
    worker.close()
