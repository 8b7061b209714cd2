"""Beam search beside transformers' own, on models too small to agree by accident."""

import asyncio
from collections.abc import AsyncGenerator
from functools import lru_cache
from itertools import product
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from protocol.errors import InternalError, InvalidRequest, TriptychError
from protocol.sampling_checks import check_request
from protocol.types import (
    GenerateRequest,
    PositionLogprobs,
    RequestOutput,
    SamplingParams,
    TokenLogprob,
)
from services.worker.beam_search import BeamSearch
from services.worker.beam_steps import beam_steps, prompt_of_beams
from tests.support.thinned import thinned

VOCABULARY = 24
PROMPT = [3, 1, 4, 1, 5]
MOST = 9


@pytest.fixture(scope="module", params=range(4))
def model(request: pytest.FixtureRequest) -> LlamaForCausalLM:
    torch.manual_seed(request.param)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=2, initializer_range=0.6, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


@lru_cache(maxsize=1 << 14)  # searches meet the same beams again and again
def sorted_logprobs(
    model: LlamaForCausalLM, tokens: tuple[int, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the next token, and the ids that they are of."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([tokens])).logits[0, -1].float()
        return torch.log_softmax(logits, -1).sort(descending=True)


def following(model: LlamaForCausalLM, tokens: list[int], count: int) -> PositionLogprobs:
    values, ids = (found[:count] for found in sorted_logprobs(model, tuple(tokens)))
    top = [
        TokenLogprob(int(token), float(value), rank + 1)
        for rank, (token, value) in enumerate(zip(ids, values, strict=True))
    ]
    return PositionLogprobs(top[0].token_id, top[0].logprob, 1, top)


EARLY, PENALTIES, ENDS = [True, False, "never"], [0.0, 1.0, 2.5, -1.0], [[], [7], [2, 9]]


def kept(model: int, width: int, early: Any, penalty: float, ends: list[int]) -> bool:
    """Every combination of the options with one model, and half of them with either width; a width
    of one beam, to which only ends matter, with one each."""
    turn = EARLY.index(early) + PENALTIES.index(penalty) + ENDS.index(ends)
    if width == 1:
        return early is True and penalty == 0.0 and model == turn
    return model == turn % 4 and width == (3, 8)[(turn + ENDS.index(ends)) % 2]


@pytest.mark.parametrize(
    ("model", "width", "early_stopping", "length_penalty", "ends"),
    thinned(product(range(4), (1, 3, 8), EARLY, PENALTIES, ENDS), kept),
    indirect=["model"],
)
def test_sequences_and_scores_equal_generate(
    model: LlamaForCausalLM, width: int, early_stopping: Any, length_penalty: float, ends: list[int]
) -> None:
    config = GenerationConfig(
        num_beams=width, num_return_sequences=width, max_new_tokens=MOST, do_sample=False,
        early_stopping=early_stopping, length_penalty=length_penalty, pad_token_id=0,
        eos_token_id=ends or None, return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    if width == 1:
        config.early_stopping, config.length_penalty = None, None
    with torch.inference_mode():
        expected = model.generate(torch.tensor([PROMPT]), generation_config=config)
    sampling = SamplingParams(
        max_tokens=MOST, n=width, beam_width=width, temperature=0.0,
        length_penalty=length_penalty, early_stopping=early_stopping,
    )  # fmt: skip
    search = BeamSearch(sampling, dict.fromkeys(ends))
    while not search.done:
        search.advance(
            [
                following(model, [*PROMPT, *beam.token_ids], width + len(ends))
                for beam in search.running
            ]
        )
    rows = expected.sequences[:, len(PROMPT) :].tolist()
    found = [list(ended.beam.token_ids) for ended in search.best()]
    assert found == [row[: len(beam)] for row, beam in zip(rows, found, strict=True)]
    for row, ended in zip(rows, search.best(), strict=True):
        tokens = ended.beam.token_ids
        assert (tokens[-1] in ends) == (ended.reason == "stop")
        assert len(tokens) == MOST or ended.reason == "stop"
        assert not {*row[len(tokens) :]} - {0, *ends[:1]}, "padding"
    if width > 1:
        scores = [ended.score for ended in search.best()]
        assert scores == pytest.approx(expected.sequences_scores.tolist(), rel=1e-4)


class Engine:
    """Answers as an engine does, by a model; `asked` are the requests."""

    def __init__(self, model: LlamaForCausalLM, fails: TriptychError | None = None) -> None:
        self.model = model
        self.fails = fails
        self.asked: list[GenerateRequest] = []

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[list[RequestOutput], None]:
        check_request(request, VOCABULARY)
        self.asked.append(request)
        if self.fails and len(self.asked) == 3:
            raise self.fails
        emitted = request.emitted or {index: [] for index in range(request.sampling.n)}
        for index, tokens in emitted.items():
            assert len(tokens) == request.sampling.max_tokens - 1
            count = request.sampling.logprobs or 1
            position = following(self.model, [*request.token_ids, *tokens], count)
            output = RequestOutput(
                request.request_id, index, [position.token_id], [position], "length"
            )
            output.cached_tokens = 0 if len(self.asked) == 1 else 4
            yield [output]


def run(
    engine: Engine, request: GenerateRequest, eos: tuple[int, ...]
) -> list[list[RequestOutput]]:
    async def gather() -> list[list[RequestOutput]]:
        return [outputs async for outputs in beam_steps(engine.generate, request, eos)]

    return asyncio.run(gather())


def wanted(**fields: Any) -> GenerateRequest:
    given = {"max_tokens": MOST, "n": 2, "beam_width": 3, "temperature": 0.0, **fields}
    return GenerateRequest("r", PROMPT, SamplingParams(**given))


def test_a_search_is_one_request_for_each_token(model: LlamaForCausalLM) -> None:
    engine = Engine(model)
    *steps, last = run(engine, wanted(ignore_eos=True), (7,))
    assert steps == [[]] * MOST and len(engine.asked) == MOST
    assert [request.sampling.n for request in engine.asked] == [1] + [3] * (MOST - 1)
    assert [output.index for output in last] == [0, 1] and last[0].logprobs is None
    assert all(len(output.token_ids) == MOST for output in last)
    assert [output.cached_tokens for output in last] == [0, None]


def test_kv_from_elsewhere_is_fetched_once(model: LlamaForCausalLM) -> None:
    """For one choice, though the search asks for more; then it is a cached prefix."""
    engine = Engine(model)
    request = wanted(logprobs=1)
    request.kv_transfer_params, request.emitted = {"remote_request_id": "r"}, {0: [], 1: []}
    *_, last = run(engine, request, (7,))
    assert [r.kv_transfer_params is None for r in engine.asked[:3]] == [False, True, True]
    assert engine.asked[0].sampling.n == 1 and not engine.asked[0].emitted
    for output in last:
        assert output.logprobs is not None
        assert [p.token_id for p in output.logprobs] == output.token_ids
        assert all(len(p.top_logprobs) == 1 for p in output.logprobs)


def test_no_end_comes_before_min_tokens(model: LlamaForCausalLM) -> None:
    ends = tuple(range(0, VOCABULARY, 2))
    *_, last = run(Engine(model), wanted(min_tokens=4, stop_token_ids=ends), ())
    for output in last:
        assert not set(ends) & set(output.token_ids[:4]) and len(output.token_ids) > 4
        assert output.stop_reason in ends or len(output.token_ids) == MOST


def test_an_error_of_a_step_ends_the_search(model: LlamaForCausalLM) -> None:
    engine = Engine(model, fails=InternalError("a step failed"))
    with pytest.raises(InternalError):
        run(engine, wanted(), (7,))
    assert len(engine.asked) == 3


def test_a_prompt_that_is_handed_over_has_no_beams() -> None:
    sampling = prompt_of_beams(wanted(stop_token_ids=(5,))).sampling
    assert not sampling.beam_width and sampling.ignore_eos and not sampling.stop_token_ids
    plain = wanted(beam_width=0, stop_token_ids=(5,))
    assert prompt_of_beams(plain) is plain


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"n": 4}, "n"),
        ({"presence_penalty": 1.0}, "presence_penalty"),
        ({"stop": ("x",)}, "stop"),
        ({"bad_words": ((1,),)}, "bad_words"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"grammar": "start: 'x'"}, "response_format"),
    ],
)
def test_what_cannot_be_combined_is_refused_by_name(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_request(wanted(**fields), VOCABULARY)
    assert refused.value.param == name


def test_more_ends_than_an_engine_tells_of_are_refused(model: LlamaForCausalLM) -> None:
    with pytest.raises(InvalidRequest, match="leave room for 4 tokens"):
        run(Engine(model), wanted(n=1, beam_width=16, stop_token_ids=tuple(range(5))), ())
