"""Through the real processes and the real proxy: the tokens of transformers' `generate()`, in every
topology, of a few families that differ; of the others by `-m slow`."""

from collections.abc import Iterator, Sequence

import pytest

from tests.conftest import ModelDir
from tests.support.clients import all_tokens, complete, tokens
from tests.support.conversations import LONG, asking, picture
from tests.support.reference import reference_generate
from tests.support.thinned import thinned
from tests.support.tiny_models import FAMILIES, VISION_FAMILIES
from tests.support.topologies import (
    EPD,
    EVERYWHERE,
    TOKENS,
    TOPOLOGIES,
    Topologies,
    check_loaded_parts,
    topologies_of,
)

QWEN = [name for name in VISION_FAMILIES if name.startswith("qwen")]
each_topology = pytest.mark.parametrize("topology", TOPOLOGIES)


def of(families: Sequence[str], *kept: str) -> pytest.MarkDecorator:
    """A test of each family, of which those that are kept are not slow."""
    named = thinned(([name] for name in families), lambda name: name in (kept or EVERYWHERE))
    return pytest.mark.parametrize("topologies", named, indirect=True)


@pytest.fixture(scope="module")
def topologies(request: pytest.FixtureRequest, model_dir: ModelDir) -> Iterator[Topologies]:
    with topologies_of(model_dir(request.param)) as started:
        yield started


@each_topology
@of(FAMILIES)
def test_tokens_equal_generate(topology: str, topologies: Topologies) -> None:
    """All cases at the same moment, twice: the second time out of every cache."""
    server = topologies.server(topology)
    for _ in range(2):
        served = all_tokens(server, topologies.cases, max_tokens=TOKENS, ignore_eos=True)
        assert served == topologies.expected


@each_topology
@of(FAMILIES, "qwen3_vl")
def test_beams_equal_generate(topology: str, topologies: Topologies) -> None:
    """Some end early, by a token that is among the likeliest and a penalty for long ones; in the
    order of their scores."""
    case, server = topologies.cases[-1], topologies.server(topology)
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


@each_topology
@of(QWEN)
def test_pictures_within_bounds_of_a_request(topology: str, topologies: Topologies) -> None:
    """As transformers with the same size; whole pictures are known to caches from tests before.
    Pictures of other families have one size."""
    server, case = topologies.server(topology), topologies.cases[3]
    asked = {"max_tokens": TOKENS, "ignore_eos": True}
    prompts = []
    for kwargs, expected in topologies.bounded:
        answer = complete(server, case, mm_processor_kwargs=kwargs or None, **asked)
        prompts.append(answer["usage"]["prompt_tokens"])
        assert answer["choices"][0]["token_ids"] == expected
    small, whole = prompts
    assert small < whole


@of(FAMILIES)
def test_every_role_loads_only_its_part(topologies: Topologies) -> None:
    for topology in TOPOLOGIES:
        topologies.server(topology)
    check_loaded_parts(topologies)


@of(["qwen3_vl"])
def test_16_mixed_requests_at_once(topologies: Topologies) -> None:
    """Twice as many as a worker runs at the same time. One family is enough."""
    cases = [
        case
        for i in range(4)
        for case in (
            asking(f"{LONG} {i}"),
            asking(picture(i), "What is in this image?"),
            asking(picture(i % 2), f"Number {i}", picture(i, 160, 240), "?"),
            asking(picture(0), LONG),
        )
    ]
    path = topologies.stack.model
    expected = [reference_generate(path, case, TOKENS, ignore_eos=True) for case in cases]
    for topology in TOPOLOGIES:
        served = all_tokens(topologies.server(topology), cases, max_tokens=TOKENS, ignore_eos=True)
        assert served == expected, topology


@of(FAMILIES)
def test_seeded_sampling_is_the_same_everywhere(topologies: Topologies) -> None:
    case = topologies.cases[1]
    params = {"temperature": 1.0, "top_p": 0.9, "seed": 11, "n": 3, "max_tokens": TOKENS,
              "ignore_eos": True}  # fmt: skip
    answers = [
        [choice["token_ids"] for choice in complete(server, case, **params)["choices"]]
        for server in map(topologies.server, TOPOLOGIES)
    ]
    assert len({tuple(ids) for ids in answers[0]}) == 3
    assert answers[0] == answers[1] == answers[2]


@of(VISION_FAMILIES)
def test_a_cached_prefix_with_a_picture_is_reported(topologies: Topologies) -> None:
    server = topologies.server(EPD)
    cases = [asking(picture(77), f"{LONG} {tail}") for tail in ("One.", "Two.")]
    first, second = (complete(server, case, max_tokens=2)["usage"] for case in cases)
    assert first["prompt_tokens_details"]["cached_tokens"] < 32
    cached = second["prompt_tokens_details"]["cached_tokens"]
    assert second["prompt_tokens"] - 64 < cached < second["prompt_tokens"]
    assert tokens(server, cases[0], max_tokens=TOKENS) == tokens(
        topologies.server("one process"), cases[0], max_tokens=TOKENS
    )
