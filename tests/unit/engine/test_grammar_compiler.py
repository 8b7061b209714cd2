"""Grammars on their way to be compiled: bounded, kept, and no fault of the engine's."""

import json
import threading
from concurrent.futures import Future
from pathlib import Path

import pytest
from llguidance import LLMatcher, LLTokenizer

from protocol.errors import InvalidRequest, Unavailable
from services.engine.loaded_model import ModelAdmission
from services.engine.sampling.grammar import GrammarConstraint, Grammars
from tests.conftest import ModelDir
from tests.support.conversations import LONG, asking
from tests.support.engines import ended, engine, request_of
from tests.support.reference import load

TEXT = asking("What is in this image?")


def choice(*texts: str) -> str:
    return LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, texts)))


def said(path: Path, tokens: list[int]) -> str:
    text: str = load(path).tokenizer.decode(tokens, skip_special_tokens=True)
    return text


def test_a_prompt_is_computed_while_its_grammar_is_compiled(model_dir: ModelDir) -> None:
    path = model_dir("qwen2_5_vl")
    worker = engine(path)
    assert worker.generate is not None and worker._grammars is not None
    held = threading.Event()
    worker._grammars._pool.submit(held.wait)
    slow, _ = request_of(path, asking(LONG), "slow", grammar=choice("no"))
    quick, _ = request_of(path, TEXT, "quick")
    for request in (slow, quick):
        assert worker.generate.add(request) == []
    assert ended(worker, "quick")[-1].error is None
    (waiting,) = worker.generate.scheduler.running
    assert waiting.num_computed == waiting.num_prompt - 1 and not waiting.num_output
    steps = worker.counters()["steps"]
    worker.step()
    assert worker.counters()["steps"] == steps and worker.wait_s > 0
    held.set()
    tokens = [token for output in ended(worker, "slow") for token in output.token_ids]
    assert said(path, tokens) == "no"
    worker.close()


def test_what_the_compiler_raises_is_the_grammars_fault() -> None:
    broken: Future[LLMatcher] = Future()
    broken.set_exception(RuntimeError("no"))
    with pytest.raises(InvalidRequest, match="no"):
        GrammarConstraint(broken, 10).allowed([])


def test_without_a_tokenizer_grammars_are_refused(model_dir: ModelDir, tmp_path: Path) -> None:
    path = model_dir("qwen2_5_vl")
    worker = engine(path)
    assert worker.generate is not None
    model = worker.generate._checks._model
    assert isinstance(model, ModelAdmission)
    model._grammars = Grammars.load(tmp_path, 10, (0,))
    request, _ = request_of(path, TEXT, "r", grammar=choice("no"))
    (refused,) = worker.generate.add(request)
    assert refused.error is not None and refused.error.param == "grammar"
    worker.close()


def test_grammars_that_wait_are_bounded(model_dir: ModelDir) -> None:
    path = model_dir("qwen2_5_vl")
    grammars = Grammars.load(path, load(path).config.get_text_config().vocab_size, load(path).eos)
    held = threading.Event()
    grammars._pool.submit(held.wait)
    waiting = [grammars.constraint(choice(f"{number}")) for number in range(256)]
    assert grammars.constraint(choice("0")) is not None, "it waits already"
    with pytest.raises(Unavailable):
        grammars.constraint(choice("one more"))
    held.set()
    for one in waiting:
        assert one is not None
        one._compiled.result(30)
        assert one.allowed([]).any()
    assert grammars.constraint(choice("one more")) is not None
    grammars.close()


def test_the_last_grammars_are_kept(model_dir: ModelDir) -> None:
    path = model_dir("qwen2_5_vl")
    grammars = Grammars.load(path, load(path).config.get_text_config().vocab_size, load(path).eos)
    constraints: list[GrammarConstraint] = []
    for number in range(100):
        found = grammars.constraint(choice(f"{number}"))
        assert found is not None
        found._compiled.result(30)
        constraints.append(found)
    assert len(grammars._compiled) == 64
    assert constraints[0].allowed([]).any(), "who holds one may go on with it"
    assert grammars.constraint("") is None
    grammars.close()


def test_what_the_compiler_says_is_cut_short() -> None:
    """It repeats the line of the grammar that it cannot compile."""
    compiled: Future[LLMatcher] = Future()
    grammar = LLMatcher.grammar_from_lark("start: " + '"a" ' * 500 + "nosuch")
    compiled.set_result(LLMatcher(LLTokenizer("byte"), grammar, log_level=0))
    with pytest.raises(InvalidRequest, match="nosuch") as caught:
        GrammarConstraint(compiled, 257).allowed([])
    assert len(caught.value.message) <= len("grammar: ") + 300
