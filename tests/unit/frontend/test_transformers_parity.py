"""Prompts equal to those of transformers' own processing."""

from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.conftest import ModelDir
from tests.support import tiny_models
from tests.support.chat_templates import TEMPLATES
from tests.support.clients import openai_messages
from tests.support.conversations import clip_cases
from tests.support.frontend_helpers import (
    Fronts,
    data_url,
    frontend,
    frontends,
    image_part,
    picture,
    render,
    user,
    write_model,
)
from tests.support.reference import load as load_reference

DEMO = Path(__file__).parents[3] / "models" / "demo"
RED, BLUE, WIDE = picture(60, 40), picture(100, 300, "blue"), picture(700, 90, "green")


@pytest.fixture(scope="module")
def fronts(tmp_path_factory: pytest.TempPathFactory) -> Fronts:
    return frontends(tmp_path_factory.mktemp("models"))


def conversation(takes_pictures: bool) -> list[list[dict[str, Any]]]:
    texts = [
        user("Hello, how are you?"),
        [{"role": "system", "content": "Be brief."}, *user("1 < 2 & <b>bold</b>?\n\n")],
        [*user("Hi"), {"role": "assistant", "content": " Hello \n"}, *user("你好 🙂 naïve")],
    ]
    if not takes_pictures:
        return texts
    return [
        *texts,
        user(image_part(RED)),
        user("What is", image_part(RED), "and\n", image_part(BLUE), image_part(RED)),
        [
            *user(image_part(WIDE), " a "),
            {"role": "assistant", "content": "ok"},
            *user(image_part(BLUE), "b"),
        ],
    ]


def for_transformers(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same messages with decoded pictures."""

    def part(part: dict[str, Any]) -> dict[str, Any]:
        if part["type"] == "text":
            return part
        (data,) = (d for d in (RED, BLUE, WIDE) if part["image_url"]["url"] == data_url(d))
        return {"type": "image", "image": Image.open(BytesIO(data))}

    return [
        {**m, "content": [part(p) for p in m["content"]]} if isinstance(m["content"], list) else m
        for m in messages
    ]


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_token_ids_are_those_of_transformers(family: str, model_dir: ModelDir) -> None:
    model = model_dir(family)
    front, reference = frontend(model), load_reference(model)
    for messages in conversation(family in tiny_models.VISION_FAMILIES):
        expected = reference.inputs(for_transformers(messages))
        rendered = render(front, messages)
        assert rendered.generate.token_ids == expected["input_ids"][0].tolist()
        grids = expected.get("image_grid_thw")
        if grids is not None:
            assert [list(i.grid) for i in rendered.generate.mm_items] == grids.tolist()


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", ""])
def test_token_ids_of_clips_are_those_of_transformers(family: str, model_dir: ModelDir) -> None:
    """The demo model's directory has no file for clips: they are processed as pictures are."""
    model = model_dir(family) if family else DEMO
    if not (model / "tokenizer.json").exists():
        pytest.skip("the demo model is not there")
    front, reference = frontend(model), load_reference(model)
    for case in clip_cases():
        expected = reference.inputs(case)
        rendered = render(front, openai_messages(case)).generate
        assert rendered.token_ids == expected["input_ids"][0].tolist()
        clips = [item for item in rendered.mm_items if item.modality == "video"]
        assert [list(item.grid) for item in clips] == expected["video_grid_thw"].tolist()


@pytest.mark.skipif(not (DEMO / "tokenizer.json").exists(), reason="the demo model is not there")
def test_token_ids_of_the_demo_model_are_those_of_transformers() -> None:
    front, reference = frontend(DEMO), load_reference(DEMO)
    for messages in conversation(takes_pictures=True):
        expected = reference.inputs(for_transformers(messages))["input_ids"][0].tolist()
        assert render(front, messages).generate.token_ids == expected


@pytest.mark.parametrize(
    "family", ["qwen2_vl", "gemma3", "llava_onevision", "internvl", "mistral3", "smolvlm", "gemma4"]
)
def test_spans_cover_exactly_the_placeholders(family: str, fronts: Fronts) -> None:
    front = fronts(family)
    request = render(front, user("a", image_part(RED), image_part(WIDE), "b")).generate
    pad = front.family.placeholders["image"].pad_id
    runs = [run for item in request.mm_items for run in item.runs]
    spans = [place for run in runs for place in range(*run)]
    assert spans == [place for place, token in enumerate(request.token_ids) if token == pad]
    first, second = request.mm_items
    assert first.end <= second.offset and first.mm_hash != second.mm_hash


def test_a_template_for_strings_gets_pictures_in_their_place(tmp_path: Path) -> None:
    model = write_model("qwen2_vl", tmp_path)
    parts = render(frontend(model), user("a", image_part(RED), "b")).generate
    (model / "chat_template.jinja").write_text(TEMPLATES["qwen3_tools"])
    flat = frontend(model)
    request = render(flat, user("a", image_part(RED), "b")).generate
    assert [item.length for item in request.mm_items] == [item.length for item in parts.mm_items]
    text = flat.tokenizer.decode(request.token_ids, skip_special_tokens=False)
    pads = "<|image_pad|>" * request.mm_items[0].length
    assert f"a\n<|vision_start|>{pads}<|vision_end|>\nb<|im_end|>" in text


def test_a_template_for_parts_gets_strings_as_parts(fronts: Fronts) -> None:
    front = fronts("llava_onevision")
    text = render(front, [{"role": "user", "content": "Hello"}]).generate.token_ids
    assert text == render(front, user("Hello")).generate.token_ids


def test_tools_and_tool_calls_reach_the_template(tmp_path: Path) -> None:
    model = write_model("qwen3", tmp_path)
    (model / "chat_template.jinja").write_text(TEMPLATES["qwen3_tools"])
    front = frontend(model)
    call = {
        "id": "1",
        "type": "function",
        "function": {"name": "f", "arguments": '{"b": 1, "a": "é"}'},
    }
    messages = [
        *user("x"),
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": "y"},
    ]
    tools = [{"type": "function", "function": {"name": "f"}}]
    ids = render(front, messages, tools=tools).generate.token_ids
    text = front.tokenizer.decode(ids, skip_special_tokens=False)
    assert '"arguments": {"b": 1, "a": "é"}}' in text
    assert "<tools>" in text and "<tool_response>\ny\n</tool_response>" in text
    ids = render(front, messages, tools=tools, tool_choice="none").generate.token_ids
    assert "<tools>" not in front.tokenizer.decode(ids, skip_special_tokens=False)


def test_template_variables_and_open_ends(fronts: Fronts) -> None:
    front = fronts("qwen3")

    def text(**fields: Any) -> str:
        ids = render(front, **fields).generate.token_ids
        return front.tokenizer.decode(ids, skip_special_tokens=False)

    assert text().endswith("<|im_start|>assistant\n")
    assert text(add_generation_prompt=False).endswith("Hello<|im_end|>\n")
    thinking_off = {"enable_thinking": False}
    assert text(chat_template_kwargs=thinking_off).endswith("<think>\n\n</think>\n\n")
    started = [*user("Hello"), {"role": "assistant", "content": "It is"}]
    open_end = text(messages=started, add_generation_prompt=False, continue_final_message=True)
    assert open_end.endswith("<|im_start|>assistant\nIt is")
