"""Through the real processes and the real proxy: the tokens of transformers' `generate()` for
clips. Those of Qwen2.5-VL in E+P+D are also in test_handshake.py."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pytest

from tests.conftest import ModelDir
from tests.support.clients import all_tokens, complete
from tests.support.clips import clip
from tests.support.conversations import asking, clip_cases
from tests.support.reference import load, reference_generate
from tests.support.stack import call
from tests.support.thinned import thinned
from tests.support.topologies import EPD, TOKENS, TOPOLOGIES, Topologies, topologies_of

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")
SAMPLINGS: tuple[dict[str, Any], ...] = ({"fps": 1.0}, {"num_frames": 4})


@dataclass
class Clips:
    """What is to be answered, for all topologies."""

    topologies: Topologies

    @cached_property
    def expected(self) -> list[tuple[int, list[int]]]:
        """Tokens of the prompt and of the answer, for each case."""
        reference = load(self.topologies.stack.model.resolve())
        inputs = [reference.inputs(case) for case in clip_cases()]
        return [
            (one["input_ids"].shape[1], reference.generate(one, TOKENS, ignore_eos=True))
            for one in inputs
        ]

    @cached_property
    def sampled(self) -> list[list[int]]:
        """The answer to the second case for each way of choosing its frames."""
        path, case = self.topologies.stack.model, clip_cases()[1]
        return [
            reference_generate(path, case, TOKENS, ignore_eos=True, sampling=sampling)
            for sampling in SAMPLINGS
        ]

    @property
    def encoded(self) -> int:
        """Pictures and clips that were encoded so far."""
        workers = [
            worker
            for name, worker in self.topologies.workers.items()
            if name in ("encoder", "pdfusion")
        ]
        return sum(call(f"{one.url}/integrity")[1]["counters"]["mm_encoded"] for one in workers)


@pytest.fixture(scope="module")
def clips(request: pytest.FixtureRequest, model_dir: ModelDir) -> Iterator[Clips]:
    with topologies_of(model_dir(request.param)) as started:
        yield Clips(started)


def of(kept: str) -> pytest.MarkDecorator:
    """A test of each family, of which all but one are slow."""
    named = thinned(([name] for name in FAMILIES), lambda name: name == kept)
    return pytest.mark.parametrize("clips", named, indirect=True)


@of("qwen3_vl")
def test_tokens_of_clips_equal_generate(clips: Clips) -> None:
    check_clips(clips, EPD)


@pytest.mark.parametrize("topology", [name for name in TOPOLOGIES if name != EPD])
@of("qwen2_5_vl")
def test_tokens_of_clips_equal_generate_in_other_topologies(clips: Clips, topology: str) -> None:
    check_clips(clips, topology)


def check_clips(clips: Clips, topology: str) -> None:
    """All at the same moment, then each once more: no clip is encoded again."""
    server, expected = clips.topologies.server(topology), clips.expected
    asked = {"max_tokens": TOKENS, "ignore_eos": True}
    assert all_tokens(server, clip_cases(), **asked) == [ids for _, ids in expected]
    encoded = clips.encoded
    assert encoded > 0
    for case, (prompt, ids) in zip(clip_cases(), expected, strict=True):
        answer = complete(server, case, **asked)
        assert answer["choices"][0]["token_ids"] == ids
        assert answer["usage"]["prompt_tokens"] == prompt
    complete(server, asking("Once more, another question before it:", clip(1)), **asked)
    assert clips.encoded == encoded
    for sampling, ids in zip(SAMPLINGS, clips.sampled, strict=True):
        few = complete(server, clip_cases()[1], mm_processor_kwargs=sampling, **asked)
        assert few["choices"][0]["token_ids"] == ids
