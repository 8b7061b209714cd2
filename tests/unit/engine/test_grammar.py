"""Outputs held to a grammar: what may be said is said as the model prefers, anywhere, and nothing
else is."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from llguidance import LLMatcher

from services.engine.engine import Engine
from tests.conftest import ModelDir
from tests.support.conversations import asking, picture
from tests.support.engines import ended, engine, request_of, run
from tests.support.reference import Messages, load

TEXT = asking("What is in this image?")
CHOICES = ("a red circle", "a blue square", "a", "no")
SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
        "ok": {"type": "boolean"},
        "who": {"enum": ["a", "b"]},
    },
    "required": ["n", "ok", "who"],
    "additionalProperties": False,
}


def choice(*texts: str) -> str:
    return LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, texts)))


def regex(pattern: str) -> str:
    return LLMatcher.grammar_from_regex(pattern)


def schema(value: dict[str, Any]) -> str:
    options = {"whitespace_flexible": False}
    return LLMatcher.grammar_from_json_schema(value, overrides=options)  # type: ignore[arg-type]


def said(path: Path, tokens: list[int]) -> str:
    text: str = load(path).tokenizer.decode(tokens, skip_special_tokens=True)
    return text


def served(path: Path, worker: Engine, case: Messages, **sampling: Any) -> dict[int, list[int]]:
    tokens = run(worker, [request_of(path, case, "r", **sampling)])
    assert worker.check_integrity() == []
    return {index: ids for (_, index), ids in tokens.items()}


def reference(path: Path, case: Messages, may_go_on: Callable[[str], bool], ends: str) -> list[int]:
    """transformers' greedy tokens where every prefix must be one that may go on."""
    model = load(path)
    inputs = model.inputs(case)
    length = inputs["input_ids"].shape[1]
    texts = [model.tokenizer.decode([t]) for t in range(model.config.get_text_config().vocab_size)]

    def allowed(_: int, ids: torch.Tensor) -> list[int]:
        text = said(path, ids[length:].tolist())
        found = [t for t, piece in enumerate(texts) if piece and may_go_on(text + piece)]
        found = [token for token in found if token not in model.eos]
        return found + (list(model.eos) if re.fullmatch(ends, text) else [])

    with torch.inference_mode():
        output = model.model.generate(
            **inputs,
            do_sample=False,
            max_new_tokens=24,
            prefix_allowed_tokens_fn=allowed,
            eos_token_id=list(model.eos),
            pad_token_id=model.tokenizer.pad_token_id,
        )
    ids: list[int] = output[0, length:].tolist()
    return ids


@pytest.fixture(scope="module")
def shared(model_dir: ModelDir) -> Iterator[Engine]:
    """An engine for tests that do not look at its counters."""
    worker = engine(model_dir("qwen2_5_vl"))
    yield worker
    worker.close()


@pytest.mark.parametrize("family", ["qwen2_5_vl", "gemma3", "llama"])
def test_a_choice_is_made_as_generate_would_make_it(family: str, model_dir: ModelDir) -> None:
    path = model_dir(family)
    worker = engine(path)
    tokens = served(path, worker, TEXT, grammar=choice(*CHOICES), max_tokens=24)[0]
    ends = "|".join(map(re.escape, CHOICES))
    expected = reference(
        path, TEXT, lambda text: any(one.startswith(text) for one in CHOICES), ends
    )
    # Where only one text can follow, the library spells it in tokens of its choice.
    assert said(path, tokens) == said(path, expected)
    assert said(path, tokens) in CHOICES and tokens[-1] in load(path).eos
    worker.close()


@pytest.mark.parametrize("family", ["qwen2_5_vl", "gemma3"])
def test_every_choice_and_seed_keeps_to_a_schema(family: str, model_dir: ModelDir) -> None:
    path = model_dir(family)
    worker = engine(path)
    case = asking(picture(1), "What is in this image?")
    texts = set()
    for seed in range(2):
        found = served(
            path, worker, case, grammar=schema(SCHEMA), max_tokens=96, n=3, seed=seed,
            temperature=2.0,
        )  # fmt: skip
        assert sorted(found) == [0, 1, 2]
        for tokens in found.values():
            text = said(path, tokens)
            texts.add(text)
            value = json.loads(text)
            assert set(value) == {"n", "ok", "who"} and value["who"] in ("a", "b")
            assert isinstance(value["ok"], bool) and value["n"] in range(100)
            assert tokens[-1] in load(path).eos
    assert len(texts) > 3
    worker.close()


def test_it_goes_on_elsewhere_from_any_token(model_dir: ModelDir, shared: Engine) -> None:
    path = model_dir("qwen2_5_vl")
    how = {"grammar": regex("([a-z]{3}[0-9]){6}"), "max_tokens": 40, "temperature": 0.8, "seed": 5}
    whole = served(path, shared, TEXT, **how)[0]
    assert re.fullmatch("([a-z]{3}[0-9]){6}", said(path, whole))
    for cut in (1, 5, len(whole) - 1):
        generate, encode = request_of(path, TEXT, "r", **how)
        generate.emitted = {0: whole[:cut]}
        assert run(shared, [(generate, encode)])["r", 0] == whole[cut:]


def test_preemption_forgets_nothing(model_dir: ModelDir, shared: Engine) -> None:
    path = model_dir("qwen2_5_vl")
    worker = engine(path, num_blocks=14, max_num_batched_tokens=64)
    cases = [asking(picture(seed), "What is in this image?") for seed in range(6)]
    grammar = regex("([a-z]{3}[0-9]){5}")
    requests = [
        request_of(path, case, f"r{i}", grammar=grammar, max_tokens=40)
        for i, case in enumerate(cases)
    ]
    found = run(worker, requests)
    assert worker.counters()["preemptions"] > 0 and worker.check_integrity() == []
    alone = [served(path, shared, case, grammar=grammar, max_tokens=40)[0] for case in cases]
    assert [found[f"r{i}", 0] for i in range(len(cases))] == alone
    assert all(re.fullmatch("([a-z]{3}[0-9]){5}", said(path, tokens)) for tokens in alone)
    worker.close()


def test_what_must_end_ends_although_more_tokens_are_wanted(
    model_dir: ModelDir, shared: Engine
) -> None:
    path = model_dir("qwen2_5_vl")
    for how in ({"min_tokens": 20}, {"ignore_eos": True}):
        tokens = served(path, shared, TEXT, grammar=choice("no"), max_tokens=24, **how)[0]
        assert said(path, tokens) == "no"
    bias = {load(path).eos[0]: 100.0}
    tokens = served(path, shared, TEXT, grammar=regex("[ab]{8}"), max_tokens=24, logit_bias=bias)[0]
    assert re.fullmatch("[ab]{8}", said(path, tokens))


@pytest.mark.parametrize(
    ("grammar", "emitted"),
    [("start: nobody", []), ("{", []), ('{"grammars": []}', []), (choice("no"), [5, 6])],
)
def test_a_grammar_that_fails_costs_its_request_only(
    grammar: str, emitted: list[int], model_dir: ModelDir, shared: Engine
) -> None:
    path = model_dir("qwen2_5_vl")
    expected = served(path, shared, TEXT)[0]
    assert shared.generate is not None
    bad, _ = request_of(path, TEXT, "bad", grammar=grammar)
    bad.emitted = {0: emitted} if emitted else {}
    assert shared.generate.add(bad) == []
    good, _ = request_of(path, TEXT, "good")
    assert shared.generate.add(good) == []
    outputs = ended(shared, "good")
    assert [token for output in outputs for token in output.token_ids] == expected
    error = shared.generate.add(msgspec.structs.replace(bad, request_id="again"))
    assert error == []
    (failed,) = ended(shared, "again")
    assert failed.error is not None and failed.error.status == 400
    assert failed.error.param == "grammar" and shared.check_integrity() == []
