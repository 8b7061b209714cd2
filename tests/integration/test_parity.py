"""Through the real processes and the real proxy: the tokens of transformers' `generate()`."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pytest

from tests.conftest import ModelDir
from tests.support.clients import all_tokens, complete, tokens
from tests.support.clips import clip
from tests.support.conversations import LONG, asking, clip_cases, picture, picture_cases, text_cases
from tests.support.reference import Messages, load, reference_generate
from tests.support.stack import Process, Stack, call, idle, proxy, running
from tests.support.tiny_models import FAMILIES, TEXT_FAMILIES

TOKENS = 12
WITH_CLIPS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")
TOPOLOGIES = ("e+p+d", "e+pd", "one process")
BEAMS: dict[str, Any] = {
    "max_new_tokens": 7, "num_beams": 4, "num_return_sequences": 4, "length_penalty": -3.0,
}  # fmt: skip


@dataclass
class Topologies:
    """One proxy per topology, before the same workers where that is possible."""

    stack: Stack
    workers: dict[str, Process]
    proxies: dict[str, Process]

    @property
    def model(self) -> str:
        return self.stack.model.name

    @cached_property
    def expected(self) -> list[list[int]]:
        """Of each case, for all topologies."""
        return [
            reference_generate(self.stack.model, case, TOKENS, ignore_eos=True)
            for case in cases_for(self)
        ]

    @cached_property
    def clips(self) -> list[tuple[int, list[int]]]:
        """Tokens of the prompt and of the answer, for each case with clips."""
        reference = load(self.stack.model.resolve())
        inputs = [reference.inputs(case) for case in clip_cases()]
        return [
            (one["input_ids"].shape[1], reference.generate(one, TOKENS, ignore_eos=True))
            for one in inputs
        ]

    @cached_property
    def sampled_clips(self) -> list[tuple[dict[str, Any], list[int]]]:
        """How a clip's frames are chosen, and the answer then."""
        return [
            (sampling, reference_generate(
                self.stack.model, clip_cases()[1], TOKENS, ignore_eos=True, sampling=sampling
            ))
            for sampling in ({"fps": 1.0}, {"num_frames": 4})
        ]  # fmt: skip

    @cached_property
    def beams(self) -> tuple[list[int], list[list[int]]]:
        """A token that ends beams early, and the beams of the last case."""
        reference = load(self.stack.model.resolve())
        inputs = reference.inputs(cases_for(self)[-1])
        ends = [reference.beams(inputs, [], **BEAMS)[1][3]]
        return ends, reference.beams(inputs, ends, **BEAMS)


@pytest.fixture(scope="module", params=FAMILIES)
def topologies(request: pytest.FixtureRequest, model_dir: ModelDir) -> Iterator[Topologies]:
    text = request.param in TEXT_FAMILIES
    with running(model_dir(request.param)) as stack:
        names = ("prefill", "decode", "pdfusion") if text else (
            "encoder", "prefill", "decode", "pdfusion"
        )  # fmt: skip
        flags = ("--max-num-batched-tokens", "200", "--max-num-seqs", "16")
        workers = {name: stack.start(f"services.{name}", *flags) for name in names}
        for worker in workers.values():
            worker.wait_ready()
        encode = [workers["encoder"]] if not text else []
        one = [workers["pdfusion"]]
        yield Topologies(
            stack,
            workers,
            {
                "e+p+d": proxy(stack, encode, [workers["prefill"]], [workers["decode"]]),
                "e+pd": proxy(stack, encode, [], [workers["decode"]]),
                "one process": proxy(stack, [] if text else one, [], one),
            },
        )
        for name in names:
            idle(workers[name])
        assert set(stack.stop()) == {0}
        assert not stack.segments.exists()


def cases_for(topologies: Topologies) -> list[Messages]:
    return text_cases() if topologies.model in TEXT_FAMILIES else picture_cases()


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_tokens_equal_generate(topology: str, topologies: Topologies) -> None:
    """All cases at the same moment, twice: the second time out of every cache."""
    cases, server = cases_for(topologies), topologies.proxies[topology]
    for _ in range(2):
        served = all_tokens(server, cases, max_tokens=TOKENS, ignore_eos=True)
        assert served == topologies.expected


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_beams_equal_generate(topology: str, topologies: Topologies) -> None:
    """Some end early, by a token that is among the likeliest and a penalty for long ones; in the
    order of their scores."""
    case, server = cases_for(topologies)[-1], topologies.proxies[topology]
    ends, expected = topologies.beams
    assert len({len(beam) for beam in expected}) > 1, "none has ended early"
    answer = complete(
        server, case, max_tokens=7, n=4, use_beam_search=True, length_penalty=-3.0,
        ignore_eos=True, stop_token_ids=ends, return_token_ids=True,
    )  # fmt: skip
    assert [choice["token_ids"] for choice in answer["choices"]] == expected
    assert answer["usage"]["completion_tokens"] == sum(map(len, expected))
    reasons = ["stop" if beam[-1] in ends else "length" for beam in expected]
    assert [choice["finish_reason"] for choice in answer["choices"]] == reasons


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_pictures_within_bounds_of_a_request(topology: str, topologies: Topologies) -> None:
    """As transformers with the same size; whole pictures are known to caches from tests before."""
    if not topologies.model.startswith("qwen") or topologies.model in TEXT_FAMILIES:
        pytest.skip("pictures of this family have one size")
    size = {"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 9}
    server, case = topologies.proxies[topology], picture_cases()[3]
    asked = {"max_tokens": TOKENS, "ignore_eos": True}
    small = complete(server, case, mm_processor_kwargs={"size": size}, **asked)
    whole = complete(server, case, **asked)
    assert small["usage"]["prompt_tokens"] < whole["usage"]["prompt_tokens"]
    for answer, option in ((small, size), (whole, None)):
        expected = reference_generate(
            topologies.stack.model, case, TOKENS, ignore_eos=True, size=option
        )
        assert answer["choices"][0]["token_ids"] == expected


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_tokens_of_clips_equal_generate(topology: str, topologies: Topologies) -> None:
    """All at the same moment, then each once more: no clip is encoded again."""
    if topologies.model not in WITH_CLIPS:
        pytest.skip("this family takes no clips here")
    server, expected = topologies.proxies[topology], topologies.clips
    asked = {"max_tokens": TOKENS, "ignore_eos": True}
    assert all_tokens(server, clip_cases(), **asked) == [ids for _, ids in expected]
    encoded = _encoded(topologies)
    for case, (prompt, ids) in zip(clip_cases(), expected, strict=True):
        answer = complete(server, case, **asked)
        assert answer["choices"][0]["token_ids"] == ids
        assert answer["usage"]["prompt_tokens"] == prompt
    complete(server, asking("Once more, another question before it:", clip(1)), **asked)
    assert _encoded(topologies) == encoded
    for sampling, ids in topologies.sampled_clips:
        few = complete(server, clip_cases()[1], mm_processor_kwargs=sampling, **asked)
        assert few["choices"][0]["token_ids"] == ids


def _encoded(topologies: Topologies) -> int:
    """Pictures and clips that were encoded so far."""
    workers = [topologies.workers[name] for name in ("encoder", "pdfusion")]
    return sum(call(f"{one.url}/integrity")[1]["counters"]["mm_encoded"] for one in workers)


def test_every_role_loads_only_its_part(topologies: Topologies) -> None:
    infos = {
        name: call(f"{worker.url}/server_info")[1] for name, worker in topologies.workers.items()
    }
    assert {info["max_num_seqs"] for info in infos.values()} == {16}
    parts = {name: set(info["parameter_bytes"]) for name, info in infos.items()}
    assert parts["prefill"] == parts["decode"] == {"language"}
    if "encoder" in parts:
        assert parts["encoder"] == {"vision"}
        assert parts["pdfusion"] == {"language", "vision"}


def test_32_mixed_requests_at_once(topologies: Topologies) -> None:
    if topologies.model != "qwen2_5_vl":
        pytest.skip("one family is enough")
    path = topologies.stack.model
    cases = [
        case
        for i in range(8)
        for case in (
            asking(f"{LONG} {i}"),
            asking(picture(i), "What is in this image?"),
            asking(picture(i % 2), f"Number {i}", picture(i, 160, 240), "?"),
            asking(picture(0), LONG),
        )
    ]
    expected = [reference_generate(path, case, TOKENS, ignore_eos=True) for case in cases]
    for topology in TOPOLOGIES:
        served = all_tokens(topologies.proxies[topology], cases, max_tokens=TOKENS, ignore_eos=True)
        assert served == expected, topology


def test_seeded_sampling_is_the_same_everywhere(topologies: Topologies) -> None:
    case = cases_for(topologies)[1]
    params = {"temperature": 1.0, "top_p": 0.9, "seed": 11, "n": 3, "max_tokens": TOKENS,
              "ignore_eos": True}  # fmt: skip
    answers = {
        name: [choice["token_ids"] for choice in complete(server, case, **params)["choices"]]
        for name, server in topologies.proxies.items()
    }
    assert len({tuple(ids) for ids in answers["e+p+d"]}) == 3
    assert answers["e+p+d"] == answers["e+pd"] == answers["one process"]


def test_a_cached_prefix_with_a_picture_is_reported(topologies: Topologies) -> None:
    if topologies.model in TEXT_FAMILIES:
        pytest.skip("no pictures")
    server = topologies.proxies["e+p+d"]
    cases = [asking(picture(77), f"{LONG} {tail}") for tail in ("One.", "Two.")]
    first, second = (complete(server, case, max_tokens=2)["usage"] for case in cases)
    assert first["prompt_tokens_details"]["cached_tokens"] < 32
    cached = second["prompt_tokens_details"]["cached_tokens"]
    assert second["prompt_tokens"] - 64 < cached < second["prompt_tokens"]
    assert tokens(server, cases[0], max_tokens=TOKENS) == tokens(
        topologies.proxies["one process"], cases[0], max_tokens=TOKENS
    )
