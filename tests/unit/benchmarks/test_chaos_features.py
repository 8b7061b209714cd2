"""What chaos adds to workers and questions, and which combinations it refuses."""

import json
from pathlib import Path

import pytest

from benchmarks.chaos.__main__ import _arguments
from benchmarks.chaos.features import NAMES, added
from benchmarks.soak.load import KINDS
from benchmarks.soak.stack import MODEL


def test_usual_questions_stay_unless_a_feature_is_asked_alone(tmp_path: Path) -> None:
    both = added(["clips", "lora"], MODEL, tmp_path)
    assert both.kinds == (*KINDS, "clip", "clip", "adapter", "adapter")
    assert both.make("describe", 3).question.kind == "describe"
    alone = added(["sounds"], "hearing", tmp_path)
    assert set(alone.kinds) == {"sound", "text"}
    assert all(json.loads(alone.make(k, 1).body(False))["model"] == "hearing" for k in alone.kinds)


def test_the_same_number_is_the_same_question(tmp_path: Path) -> None:
    made = added([name for name in NAMES if name != "embeddings"], MODEL, tmp_path)
    for kind in set(made.kinds):
        assert made.make(kind, 7).body(True) == made.make(kind, 7).body(True)
        assert made.make(kind, 7).body(True) != made.make(kind, 8).body(True)


def test_a_clip_is_one_that_the_frontend_reads(tmp_path: Path) -> None:
    pytest.importorskip("av")
    import base64
    from io import BytesIO

    import av

    (message,) = added(["clips"], MODEL, tmp_path).make("clip", 1).question.openai_messages()
    url = message["content"][0]["video_url"]["url"]
    with av.open(BytesIO(base64.b64decode(url.partition(",")[2]))) as container:
        assert sum(1 for _ in container.decode(video=0)) == 8


def test_adapters_are_of_layers_that_the_model_has(tmp_path: Path) -> None:
    from safetensors import safe_open

    from tests.support.lora import linear_layers

    flags = list(added(["lora"], MODEL, tmp_path).flags)
    assert flags[-1] == f"one={tmp_path / 'one'},two={tmp_path / 'two'}"
    layers = linear_layers(Path(MODEL))
    with safe_open(tmp_path / "one" / "adapter_model.safetensors", "np") as tensors:
        shapes = {key: tensors.get_slice(key).get_shape() for key in tensors.keys()}  # noqa: SIM118
    assert shapes
    for key, shape in shapes.items():
        path, _, part = key.removeprefix("base_model.model.").rpartition(".lora_")
        layer = layers[path]
        wide = layer.in_features if part == "A.weight" else layer.out_features
        assert wide in shape


@pytest.mark.parametrize(
    "flags",
    [
        ("--features", "clips,unknown"),
        ("--features", "embeddings"),
        ("--topology", "e+p"),
        ("--features", "sounds"),
        ("--model", "another"),
    ],
)
def test_what_does_not_go_together_is_refused(
    flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        _arguments(flags)
    assert "--features" in capsys.readouterr().err
