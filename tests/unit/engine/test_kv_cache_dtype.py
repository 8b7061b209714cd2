"""A KV cache of codes in an engine: the tokens of transformers with such a cache beside
all else that the engine does, and nothing taken from workers or files of another one."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from connectors.config import KVConfig
from protocol.errors import ConfigError
from protocol.registry import Rates
from services.engine.attention.kv_cache import block_bytes
from services.engine.config import Speculation
from services.engine.model import trial
from services.engine.scheduling.rates import RateMeter
from tests.conftest import ModelDir
from tests.support.coded_kv import coded_generate
from tests.support.conversations import LONG, asking, picture_cases, text_cases
from tests.support.engine_pairs import TOKENS, Pair
from tests.support.engines import at_once, ended, engine, request_of, run
from tests.support.lora import write_adapter
from tests.support.reference import Messages
from tests.support.remembered import remembered
from tests.support.replayed_steps import Rerun, use
from tests.support.thinned import diagonal
from tests.support.tiered_engines import MIB, PROMPTS, on_disk, opened, tier, turns
from tests.support.tiny_models import TEXT_FAMILIES

NAMES = {"int8": "int8", "fp8": "fp8_e4m3"}
KINDS = pytest.mark.parametrize("dtype", NAMES)
coded = remembered(coded_generate)


def served(path: Path, cases: list[Messages], **options: Any) -> list[list[int]]:
    """All at once; nothing is leaked."""
    worker = engine(path, **options)
    found = at_once(worker, path, cases, TOKENS)
    worker.close()
    return found


def expected(path: Path, cases: list[Messages], dtype: str) -> list[list[int]]:
    return [coded(path, case, TOKENS, NAMES[dtype]) for case in cases]


@pytest.mark.parametrize(
    ("dtype", "family"), diagonal(list(NAMES), ["qwen3", "gemma3", "qwen2_5_vl"])
)
def test_tokens_are_those_of_transformers_with_such_a_cache(
    family: str, dtype: str, model_dir: ModelDir
) -> None:
    """In chunks and side by side; gemma3 has windows and pictures that see both ways."""
    path = model_dir(family)
    cases = text_cases() if family in TEXT_FAMILIES else picture_cases()
    options: dict[str, Any] = {"max_num_batched_tokens": 96, "max_num_seqs": 8}
    assert served(path, cases, kv_cache_dtype=dtype, **options) == expected(path, cases, dtype)


@KINDS
def test_chunks_preemption_and_cached_prefixes_change_nothing(
    dtype: str, model_dir: ModelDir
) -> None:
    path, cases = model_dir("qwen2_5_vl"), picture_cases()
    truth = expected(path, cases, dtype)
    for budget, few in ((5, 2), (4096, len(cases))):
        options: dict[str, Any] = {"max_num_batched_tokens": budget, "kv_cache_dtype": dtype}
        assert served(path, cases[:few], **options) == truth[:few]
    worker = engine(path, num_blocks=14, max_num_batched_tokens=64, kv_cache_dtype=dtype)
    assert at_once(worker, path, cases * 2, TOKENS) == truth * 2
    assert worker.counters()["preemptions"] > 0
    assert worker.counters()["cached_tokens"] > 0
    worker.close()


def logits_of(path: Path, **options: Any) -> list[float]:
    """Log-probabilities of a prompt's tokens."""
    worker = engine(path, **options)
    assert worker.generate is not None
    generate, _ = request_of(path, asking(LONG, LONG), "r", max_tokens=1, prompt_logprobs=0)
    assert worker.generate.add(generate) == []
    scores = ended(worker, "r")[0].prompt_logprobs
    worker.close()
    assert scores is not None
    return [score.logprob for score in scores]


@pytest.mark.parametrize(("compute", "dtype"), diagonal(["float32", "bfloat16"], list(NAMES)))
def test_scores_of_a_prompt_do_not_depend_on_its_chunks(
    compute: str, dtype: str, model_dir: ModelDir
) -> None:
    path = model_dir("llama")
    options: dict[str, Any] = {"dtype": compute, "kv_cache_dtype": dtype}
    whole, parts = (
        logits_of(path, max_num_batched_tokens=budget, **options) for budget in (4096, 32)
    )
    # In bfloat16 a sum that differs in its last place may get the neighbouring code.
    allowed, share = (1e-4, 0.0) if compute == "float32" else (0.1, 0.01)
    assert whole == pytest.approx(parts, rel=share, abs=allowed)
    plain = logits_of(path, dtype=compute)
    off = [abs(one - other) for one, other in zip(whole, plain, strict=True)]
    assert 0 < sum(off) / len(off) < 0.5, "they are near those of a cache without codes"


@KINDS
def test_kernels_in_bfloat16_give_the_same_tokens(dtype: str, model_dir: ModelDir) -> None:
    path, cases = model_dir("qwen3"), text_cases()
    options: dict[str, Any] = {"dtype": "bfloat16", "kv_cache_dtype": dtype}
    assert served(path, cases, **options) == served(path, cases, fused_kernels=False, **options)


@pytest.mark.parametrize(("transport", "dtype"), diagonal(["shm", "shared_storage"], list(NAMES)))
def test_codes_are_handed_over_as_they_are(
    transport: str, dtype: str, model_dir: ModelDir, tmp_path: Path
) -> None:
    moved: dict[str, int] = {}
    for name in ("auto", dtype):
        pair = Pair(
            model_dir("qwen3"), tmp_path / name, transport=transport,
            shared={"kv_cache_dtype": name},
        )  # fmt: skip
        request = pair.request()
        pair.to_decode(request)
        pair.to_prefill(request)
        pair.until(lambda pair=pair: pair.finished("decode") == 1)
        assert pair.decode.kv is not None
        stats = pair.decode.kv.stats()
        moved[name], block = stats.bytes, block_bytes(pair.decode.layout)
        assert moved[name] % block == 0 and moved[name] >= len(request.token_ids) // 16 * block
        if name != "auto":
            whole = served(pair.model, [asking(LONG)], parts=("language",), kv_cache_dtype=name)
            assert pair.tokens("decode") == whole[0]
            assert pair.decode.counters()["steps"] == TOKENS - 1, "it computed no prompt itself"
        pair.settle()
    # Of float32, by heads of 16 elements: 18 bytes instead of 64.
    assert moved[dtype] < 0.3 * moved["auto"]


def test_kv_of_another_kind_is_refused(model_dir: ModelDir, tmp_path: Path) -> None:
    """The decode worker computes the prompt itself, as it does for any other layout."""
    pair = Pair(model_dir("qwen3"), tmp_path / "shm", kv_cache_dtype="int8")
    mine, theirs = (
        worker.ready().kv_endpoint["triptych"]["compatibility"]
        for worker in (pair.decode, pair.prefill)
    )
    assert mine != theirs
    request = pair.request()
    pair.to_prefill(request)
    pair.until(lambda: pair.finished("prefill") == 1)
    (output,) = pair.outputs["prefill"]
    pair.to_decode(request, output.kv_transfer_params)
    pair.until(lambda: pair.finished("decode") == 1)
    assert pair.tokens("decode") == served(pair.model, [asking(LONG)], parts=("language",))[0]
    assert pair.decode.counters()["kv_failed"] == 1
    assert pair.decode.kv is not None and pair.decode.kv.stats().bytes == 0
    assert pair.prefill.generate is not None
    pair.prefill.generate.abort(["r"])
    pair.settle()


def test_workers_share_codes_if_they_compute_alike(model_dir: ModelDir, tmp_path: Path) -> None:
    path, found = model_dir("qwen3"), set()
    shm = KVConfig(transport="shm", path=str(tmp_path))
    for dtype, codes in (("float32", "auto"), ("float32", "int8"), ("float32", "fp8"),
                         ("bfloat16", "int8"), ("float32", "int8_per_token_head")):  # fmt: skip
        worker = engine(path, dtype=dtype, kv_cache_dtype=codes, kv=shm)
        found.add(worker.ready().kv_endpoint["triptych"]["compatibility"])
        worker.close()
    assert len(found) == 4


@pytest.fixture
def slow_to_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine for which any tier is worth its while."""
    monkeypatch.setattr(RateMeter, "rates", lambda self: Rates(prefill_ms_per_token=50.0))


@pytest.mark.usefixtures("slow_to_compute")
def test_tiers_keep_codes(model_dir: ModelDir, tmp_path: Path) -> None:
    folder = model_dir("qwen2_5_vl")
    worker = opened(folder, num_blocks=256, kv_cache_dtype="int8")
    truth = turns(worker, PROMPTS)
    worker.close()
    worker = opened(folder, kv_host_bytes=8 * MIB, kv_cache_dtype="int8")
    assert turns(worker, PROMPTS, "a") == truth
    assert turns(worker, PROMPTS, "b") == truth
    assert tier(worker, "host").onboarded > 0
    worker.close()
    worker = on_disk(folder, tmp_path, kv_cache_dtype="int8")
    assert turns(worker, PROMPTS) == truth
    worker.close()
    assert list(tmp_path.rglob("*.kv"))
    worker = on_disk(folder, tmp_path, kv_cache_dtype="fp8")  # whose blocks are as large
    assert list(tmp_path.rglob("*.kv")) == []
    worker.close()


def test_the_same_memory_holds_more_blocks(model_dir: ModelDir) -> None:
    blocks = {}
    for dtype, codes in (("float32", "auto"), ("bfloat16", "auto"), ("bfloat16", "int8")):
        worker = engine(
            model_dir("qwen3"), dtype=dtype, kv_cache_dtype=codes, num_blocks=0,
            kv_cache_bytes=4 * MIB,
        )  # fmt: skip
        ready = worker.ready()
        blocks[dtype, codes] = ready.num_blocks
        assert ready.kv_bytes_per_token * ready.num_blocks * 16 <= 4 * MIB
        worker.close()
    assert blocks["bfloat16", "auto"] in (2 * blocks["float32", "auto"] + i for i in (0, 1))
    # Of heads of 16 elements a scale of 2 bytes takes an eighth.
    assert blocks["bfloat16", "int8"] > 1.7 * blocks["bfloat16", "auto"]


@pytest.mark.parametrize("method", ["ngram", "draft_model"])
def test_guesses_change_nothing(method: Any, model_dir: ModelDir) -> None:
    path, cases = model_dir("qwen2_5_vl"), picture_cases()[:3]
    draft = str(path) if method == "draft_model" else ""
    guesses = Speculation(
        method, num_speculative_tokens=4, prompt_lookup_min=1, prompt_lookup_max=3,
        adaptive=False, model=draft,
    )  # fmt: skip
    worker = engine(path, speculation=guesses, kv_cache_dtype="int8")
    assert at_once(worker, path, cases, TOKENS) == expected(path, cases, "int8")
    assert worker.counters()["draft_tokens"] > 0
    worker.close()


def test_an_adapter_beside_codes(model_dir: ModelDir, tmp_path: Path) -> None:
    path = model_dir("qwen3")
    folder = write_adapter(path, tmp_path / "a", seed=1, strength=1.0)
    worker = engine(path, max_loras=1, lora_modules={"a": str(folder)}, kv_cache_dtype="int8")
    found = []
    for name in ("", "a"):
        generate, encode = request_of(path, asking(LONG), "r", max_tokens=TOKENS, ignore_eos=True)
        generate.model = name
        found.append(run(worker, [(generate, encode)])["r", 0])
    worker.close()
    assert found[0] == expected(path, [asking(LONG)], "int8")[0] != found[1]


def test_recorded_decode_steps_read_and_write_codes(
    model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, cases = model_dir("qwen3"), text_cases()
    use(monkeypatch, capture := Rerun())
    assert served(path, cases, kv_cache_dtype="int8", max_num_seqs=4) == expected(
        path, cases, "int8"
    )
    assert capture.replayed


def test_an_unknown_kind_is_refused(model_dir: ModelDir) -> None:
    with pytest.raises(ConfigError, match="--kv-cache-dtype: 'fp8_e5m2' is not one of auto, int8"):
        engine(model_dir("qwen3"), kv_cache_dtype="fp8_e5m2")


def test_an_operator_hears_how_far_logits_are_off(
    model_dir: ModelDir, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = model_dir("qwen3")
    caplog.set_level(logging.INFO)
    engine(path, kv_cache_dtype="int8").close()
    (said,) = (r for r in caplog.records if "--kv-cache-dtype" in r.message)
    assert said.levelno == logging.INFO and "KV cache of int8" in said.message
    caplog.clear()
    monkeypatch.setattr(trial, "_CODES_TOLERANCE", 1e-9)
    engine(path, kv_cache_dtype="fp8").close()
    (said,) = (r for r in caplog.records if "--kv-cache-dtype" in r.message)
    assert said.levelno == logging.WARNING
    with pytest.raises(ConfigError, match="KV cache of int8 the logits of the model are not"):
        trial.check_codes(float(torch.inf), "int8")
