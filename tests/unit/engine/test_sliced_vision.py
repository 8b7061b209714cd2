"""Pictures are encoded in slices while others decode, and come out as if they were not."""

import itertools
import math
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from connectors.base import EC_TENSOR
from protocol.errors import TriptychError
from services.engine.attention.kv_cache import DTYPES
from services.engine.model.sliced_vision import SlicedVision
from services.engine.model.vision import VisionModel
from services.engine.scheduling.seams import Prepared
from tests.conftest import ModelDir
from tests.support.conversations import LONG, asking, picture
from tests.support.engines import engine, request_of, run
from tests.support.tiny_models import VISION_FAMILIES

Made = Callable[[VisionModel], SlicedVision]


@pytest.fixture
def sliced() -> Iterator[Made]:
    """Each layer takes a second of the clock, as it looks at it."""
    made = []

    def make(vision: VisionModel) -> SlicedVision:
        ticks = itertools.count()
        made.append(SlicedVision(vision, lambda: float(next(ticks))))
        return made[-1]

    yield make
    for one in made:
        one.close()


def vision_of(model_dir: ModelDir, family: str) -> VisionModel:
    return VisionModel(model_dir(family), DTYPES["float32"], "cpu", 1 << 24)


def prepared(model_dir: ModelDir, family: str, vision: VisionModel) -> list[Prepared]:
    case = asking(picture(1), picture(2), "?")
    return [vision.prepare(item) for item in request_of(model_dir(family), case, "r")[1].items]


@pytest.mark.parametrize("family", VISION_FAMILIES)
def test_slices_make_what_a_whole_run_makes(family: str, model_dir: ModelDir, sliced: Made) -> None:
    vision = vision_of(model_dir, family)
    batch = prepared(model_dir, family, vision)
    whole = vision.encode(batch)
    slices = sliced(vision)
    for most_s, least in ((0.5, 2), (math.inf, 1)):
        results, steps = None, 0
        while results is None:
            results, steps = slices.run(batch, most_s), steps + 1
        assert steps >= least and (least > 1 or steps == 1)
        for one, other in zip(results, whole, strict=True):
            assert not isinstance(one, TriptychError) and not isinstance(other, TriptychError)
            assert one.keys() == other.keys()
            assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_run_that_is_left_is_over(model_dir: ModelDir, sliced: Made) -> None:
    vision = vision_of(model_dir, "qwen2_5_vl")
    first, second = prepared(model_dir, "qwen2_5_vl", vision)
    slices = sliced(vision)
    assert slices.run([first], 0.5) is None
    slices.abandon()
    (expected,), results = vision.encode([second]), slices.run([second], math.inf)
    assert results is not None and not isinstance(expected, TriptychError)
    assert torch.equal(results[0][EC_TENSOR], expected[EC_TENSOR])  # type: ignore[index]
    assert slices.run([first], 0.5) is None  # closed while it waits


def test_those_who_decode_get_a_token_in_every_step_of_a_picture(model_dir: ModelDir) -> None:
    """In one process, and with the tokens that they get alone."""
    path = model_dir("qwen2_5_vl")
    text = request_of(path, asking(LONG), "text", max_tokens=40, ignore_eos=True)
    pictured = request_of(path, asking(picture(1), "What is in this image?"), "pictured")
    alone = run(engine(path), [text]) | run(engine(path), [pictured])
    ticks = itertools.count()
    worker = engine(path, lambda: next(ticks) / 1000, max_decode_delay_s=0.0005)
    assert worker.generate is not None and worker.encode is not None
    assert worker.generate.add(text[0]) == []
    tokens: dict[tuple[str, int], list[int]] = {("text", 0): [], ("pictured", 0): []}
    between = 0
    while len(tokens["text", 0]) < 5:
        tokens["text", 0] += [t for output in worker.step()[0] for t in output.token_ids]
    worker.encode.add(pictured[1])
    assert worker.generate.add(pictured[0]) == []
    deadline = time.monotonic() + 30
    while not worker.encode.runnable:
        assert time.monotonic() < deadline, "the picture is not prepared"
    while len(worker.generate):
        assert time.monotonic() < deadline, "the requests do not end"
        outputs, encoded = worker.step()
        assert not [one.error for one in encoded if one.error]
        under_way = bool(worker.encode._run.batch)
        for output in outputs:
            tokens[output.request_id, output.index] += output.token_ids
            between += under_way and output.request_id == "text"
    assert tokens == alone and between >= 2
    assert worker.check_integrity() == []
    worker.close()
