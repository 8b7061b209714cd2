"""Audio in an engine: the spectrum of transformers, and the tokens of `generate()`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from transformers import WhisperFeatureExtractor

from protocol.errors import ConfigError, InvalidRequest
from protocol.generate import encode_item
from protocol.types import EncodeItem, EncodeRequest, GenerateRequest
from services.engine.attention.prompt_tiles import _multiplied_as_bfloat16
from services.engine.config import EngineConfig, Part
from services.engine.engine import Engine
from services.engine.model.audio import AudioProcessor
from services.engine.model.loader import load_part
from services.engine.model.memory_profile import encode_peak
from services.engine.model.vision import VisionModel
from services.frontend.clips.limits import ClipLimits
from services.frontend.clips.readers import ClipReaders
from services.frontend.families.qwen2_audio import AudioWindow
from tests.conftest import ModelDir
from tests.support.audio_files import audio_file
from tests.support.audio_reference import audio_inputs, generate_from_audio
from tests.support.clients import openai_messages
from tests.support.conversations import LONG, asking, audio_cases, picture
from tests.support.engines import png, run
from tests.support.frontend_helpers import frontend, render
from tests.support.reference import Messages
from tests.support.remembered import remembered
from tests.support.thinned import diagonal
from tests.support.tiny_models import AUDIO_FAMILY

TOKENS = 8
READERS = ClipReaders(ClipLimits(), 1)  # which starts nothing for WAV files
heard = remembered(generate_from_audio)
PARTS: tuple[Part, ...] = ("language", "vision")


@pytest.fixture(scope="module")
def model(model_dir: ModelDir) -> Path:
    return model_dir(AUDIO_FAMILY)


def engine(model: Path, **options: Any) -> Engine:
    values = {"parts": PARTS, "dtype": "float32", "num_blocks": 256, **options}
    config = EngineConfig(model_dir=str(model), model=model.name, revision="test", **values)
    return Engine(config, lambda: None)


def requests_of(
    model: Path, cases: Sequence[Messages]
) -> list[tuple[GenerateRequest, EncodeRequest]]:
    front, made = frontend(model), []
    for number, case in enumerate(cases):
        asked = {"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
        rendered = render(front, openai_messages(case), **asked)
        generate = msgspec.structs.replace(rendered.generate, request_id=f"r{number}")
        items = [
            encode_item(item, rendered.media[item.mm_hash])
            for item in {item.mm_hash: item for item in generate.mm_items}.values()
        ]
        made.append((generate, EncodeRequest(generate.request_id, items)))
    return made


def served(worker: Engine, model: Path, cases: Sequence[Messages]) -> list[list[int]]:
    found = run(worker, requests_of(model, cases))
    assert worker.check_integrity() == []
    return [found[f"r{number}", 0] for number in range(len(cases))]


@pytest.mark.parametrize(("budget", "layout"), diagonal([7, 40, 4096], ["auto", "plain"]))
def test_tokens_are_those_of_generate(budget: int, layout: str, model: Path) -> None:
    """All at once, so that audio of several lengths is encoded in one run; then once more."""
    cases = audio_cases()
    worker = engine(model, max_num_batched_tokens=budget, weight_layout=layout)
    expected = [heard(model, case, TOKENS) for case in cases]
    assert served(worker, model, cases) == expected
    assert worker.counters()["mm_encoded"] == 5  # one of them is there twice
    assert served(worker, model, cases) == expected
    assert worker.counters()["mm_encoded"] == 5
    worker.close()


def test_what_is_heard_decides_on_the_answer(model: Path) -> None:
    """Else the test before would say nothing."""
    cases = [asking(audio_file(seed), "What do you hear?") for seed in range(6)]
    answers = [tuple(heard(model, case, TOKENS)) for case in cases]
    assert len(set(answers)) == len(cases)


def test_a_shared_beginning_with_audio_is_computed_once(model: Path) -> None:
    worker = engine(model)
    cases = [asking(audio_file(1), f"{LONG} Then tell me {what}.") for what in ("why", "how")]
    for case in cases:
        assert served(worker, model, [case]) == [heard(model, case, TOKENS)]
    assert worker.counters()["cached_tokens"] >= 48 and worker.counters()["mm_encoded"] == 1
    other = asking(audio_file(2), f"{LONG} Then tell me why.")
    assert served(worker, model, [other]) == [heard(model, other, TOKENS)]
    worker.close()


def test_audio_is_encoded_in_slices_beside_decoding(model: Path) -> None:
    cases = audio_cases()
    worker = engine(model, max_decode_delay_s=1e-6)
    assert served(worker, model, cases) == [heard(model, c, TOKENS) for c in cases]
    worker.close()


@pytest.mark.parametrize("seconds", [0.05, 0.3, 1.0, 1.999, 2.0])
def test_the_spectrum_is_that_of_transformers(seconds: float, model: Path) -> None:
    made = audio_file(7, seconds)
    truth = audio_inputs(model, asking(made))
    length = int((truth["input_ids"] == frontend(model).info.config["audio_token_index"]).sum())
    found = AudioProcessor(model, READERS).spectrum(
        EncodeItem("ab" * 32, "audio", length, data=made.data)
    )
    torch.testing.assert_close(found["input_features"], truth["input_features"], rtol=0, atol=1e-6)
    assert found["columns"].item() == truth["feature_attention_mask"].sum()


def test_a_spectrum_does_not_follow_how_the_process_multiplies(tmp_path: Path) -> None:
    """While it is made in a thread, attention lets all of the process round to bfloat16."""
    WhisperFeatureExtractor(feature_size=128).save_pretrained(tmp_path)
    processor = AudioProcessor(tmp_path, READERS)
    samples = torch.randn(480_000, generator=torch.Generator().manual_seed(0)).numpy()
    alone = processor._spectrum(samples)["input_features"]
    with _multiplied_as_bfloat16():
        beside = processor._spectrum(samples)["input_features"]
    assert torch.equal(alone, beside)


def test_each_length_of_a_window_of_thirty_seconds() -> None:
    """As transformers' processor counts, written down from it."""
    window = AudioWindow({})
    assert (window.rate, window.most, window.columns) == (16_000, 480_000, 3000)
    for columns in range(3, 3001):
        expected = ((columns - 1) // 2 + 1 - 2) // 2 + 1
        assert window.measure(columns * 160).length == expected
        assert window.measure(columns * 160 - 159).length == expected
    assert window.measure(480_000).length == 750
    for wrong in (0, 320, 480_001):
        with pytest.raises(InvalidRequest):
            window.measure(wrong)


def test_items_that_are_refused(model: Path) -> None:
    vision = VisionModel(model, torch.float32, "cpu", 1 << 24, readers=READERS)
    made = audio_file(1)
    item = EncodeItem("ab" * 32, "audio", 25, data=made.data)
    assert vision.prepare(item).patches == 100
    with pytest.raises(InvalidRequest, match="placeholder span has 24"):
        vision.prepare(msgspec.structs.replace(item, length=24))
    with pytest.raises(InvalidRequest, match="incomplete"):
        vision.prepare(msgspec.structs.replace(item, data=made.data[:-2]))
    with pytest.raises(InvalidRequest, match="encodes no image"):
        vision.prepare(EncodeItem("ab" * 32, "image", 25, data=png(picture(1))))


def test_an_encoder_of_pictures_takes_no_audio(model_dir: ModelDir) -> None:
    vision = VisionModel(model_dir("qwen2_5_vl"), torch.float32, "cpu", 1 << 24)
    with pytest.raises(InvalidRequest, match="encodes no audio"):
        vision.prepare(EncodeItem("ab" * 32, "audio", 25, data=audio_file(1).data))


def test_each_part_is_loaded_alone(model: Path, model_dir: ModelDir) -> None:
    language, vision = (load_part(model, part, torch.float32, "cpu") for part in PARTS)
    assert not any("audio_tower" in name for name, _ in language.named_parameters())
    assert {name.split(".")[1] for name, _ in vision.named_parameters()} == {
        "audio_tower", "multi_modal_projector",
    }  # fmt: skip
    with pytest.raises(ConfigError, match="has no vision part"):
        load_part(model_dir("qwen3"), "vision", torch.float32, "cpu")


class _Memory:
    def begin(self) -> None: ...

    def peak(self) -> int:
        return 5


def test_as_much_audio_as_a_run_takes_is_measured(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vision = VisionModel(model, torch.float32, "cpu", 1 << 24, readers=READERS)
    runs: list[int] = []
    encode = vision.encode_at_once
    monkeypatch.setattr(
        vision, "encode_at_once", lambda batch: (runs.append(len(batch)), encode(batch))
    )
    assert encode_peak(vision, _Memory(), 350, 1 << 24) == 5
    assert encode_peak(vision, _Memory(), 50, 1 << 24) == 5
    assert runs == [3, 1]
