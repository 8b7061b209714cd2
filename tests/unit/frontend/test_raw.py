"""Raw prompts with pictures, in families whose picture tokens stand apart."""

import asyncio
from typing import Any

import pytest

from protocol.types import GenerateRequest
from services.frontend.prompts.raw import MARK
from services.frontend.render import Frontend
from tests.support.frontend_helpers import (
    Fronts,
    completion,
    data_url,
    frontends,
    image_part,
    picture,
    render,
    user,
)

PICTURE = picture(60, 40)


@pytest.fixture(scope="module")
def fronts(tmp_path_factory: pytest.TempPathFactory) -> Fronts:
    return frontends(tmp_path_factory.mktemp("models"))


def raw(front: Frontend, prompt: Any, count: int = 1) -> GenerateRequest:
    request = completion(prompt)
    rendered = front.render_raw(request, [data_url(PICTURE)] * count, request_id="r")
    return asyncio.run(rendered).generate


def places(front: Frontend, generate: GenerateRequest) -> list[list[int]]:
    """Of each picture, the indices of its tokens."""
    pad = front.family.placeholders["image"].pad_id
    found = []
    for item in generate.mm_items:
        taken = [i for start, end in item.runs for i in range(start, end)]
        assert {generate.token_ids[i] for i in taken} == {pad}
        found.append(taken)
    return found


@pytest.mark.parametrize("family", ["mistral3", "smolvlm", "qwen2_5_vl", "gemma3"])
def test_pictures_of_raw_texts_stand_as_in_chats(family: str, fronts: Fronts) -> None:
    front = fronts(family)
    chat = render(front, user(image_part(PICTURE))).generate
    generate = raw(front, f"Hi {MARK} and {MARK}", 2)
    first, second = generate.mm_items
    assert first.gaps == second.gaps == chat.mm_items[0].gaps
    assert bool(first.gaps) == (family in ("mistral3", "smolvlm"))
    pad = front.family.placeholders["image"].pad_id
    taken = places(front, generate)
    assert sorted(taken[0] + taken[1]) == [
        i for i, token in enumerate(generate.token_ids) if token == pad
    ]


@pytest.mark.parametrize("family", ["mistral3", "smolvlm"])
def test_a_pad_among_raw_token_ids_is_spelled_out_as_in_texts(family: str, fronts: Fronts) -> None:
    front = fronts(family)
    pad = front.family.placeholders["image"].pad_id
    before, between, after = (front.tokenizer.encode(text) for text in ("Hi", "and", "there"))
    of_text = raw(front, MARK)
    (whole,) = of_text.mm_items
    generate = raw(front, [*before, pad, *between, pad, *after], 2)
    bos = len(front.tokenizer.encode("", add_special_tokens=True))
    one = of_text.token_ids[bos:]
    assert generate.token_ids == [*before, *one, *between, *one, *after]
    assert [item.gaps for item in generate.mm_items] == [whole.gaps] * 2
    start = len(before) + whole.offset - bos
    assert [item.offset for item in generate.mm_items] == [
        start, start + len(one) + len(between),
    ]  # fmt: skip
    assert len(places(front, generate)[0]) == whole.length
