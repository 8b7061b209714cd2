"""Requests to tokens: names of media, sampling parameters, completions."""

import asyncio
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from PIL import Image

from protocol.generate import decode_generate, encode_generate
from protocol.keys import mm_hash
from services.frontend.media.image import load_rgb
from tests.support.frontend_helpers import (
    NAME,
    Fronts,
    chat,
    frontend,
    frontends,
    image_part,
    picture,
    render,
    render_prompts,
    user,
    write_model,
)
from tests.support.tiny_configs import MAX_POSITIONS

RED, BLUE, WIDE = picture(60, 40), picture(100, 300, "blue"), picture(700, 90, "green")


@pytest.fixture(scope="module")
def fronts(tmp_path_factory: pytest.TempPathFactory) -> Fronts:
    return frontends(tmp_path_factory.mktemp("models"))


def test_the_name_of_a_picture_is_its_content_key(fronts: Fronts) -> None:
    front = fronts()
    rendered = render(front, user(image_part(RED), image_part(RED), image_part(BLUE)))
    first, second, third = (item.mm_hash for item in rendered.generate.mm_items)
    assert first == second != third and len(first) == 64
    assert dict(rendered.media) == {first: RED, third: BLUE}
    info = front.info
    assert first == mm_hash(
        RED,
        modality="image",
        processor=front.family.processor,
        model=info.name,
        revision=info.revision,
    )
    assert front.family.processor["processor"] == "Qwen2VLImageProcessor"
    assert front.family.processor["transformers"]


def test_the_same_picture_is_fetched_once(fronts: Fronts, monkeypatch: pytest.MonkeyPatch) -> None:
    front = fronts()
    fetched = []

    async def fetch(self: object, url: str, *, param: str, caller: object) -> bytes:
        fetched.append((url, param))
        return RED

    monkeypatch.setattr("services.frontend.media.fetching.MediaFetcher.fetch", fetch)
    parts = [
        {"type": "image_url", "image_url": url} for url in ("http://a", "http://b", "http://a")
    ]
    rendered = render(front, user(*parts))
    assert sorted(fetched) == [
        ("http://a", "messages[0].content[0].image_url"),
        ("http://b", "messages[0].content[1].image_url"),
    ]
    assert len(rendered.generate.mm_items) == 3 and len(rendered.media) == 1


def test_media_at_hand_are_not_fetched(fronts: Fronts) -> None:
    request = chat(user({"type": "image_url", "image_url": {"url": "https://x.invalid/a"}}))
    rendered = asyncio.run(
        fronts().render_chat(request, request_id="r", resolved={"https://x.invalid/a": RED})
    )
    assert list(rendered.media.values()) == [RED]


def test_large_pictures_are_named_off_the_event_loop(fronts: Fronts) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (800, 900, 3), dtype=np.uint8)
    file = BytesIO()
    Image.fromarray(noise).save(file, "PNG")
    data = file.getvalue()
    assert len(data) > 1 << 20
    rendered = render(fronts(), user(image_part(data)))
    assert list(rendered.media.values()) == [data]


def test_a_turned_picture_is_measured_upright(fronts: Fronts) -> None:
    exif = Image.Exif()
    exif[0x112] = 6
    file = BytesIO()
    Image.new("RGB", (112, 56)).save(file, "JPEG", exif=exif)
    (item,) = render(fronts(), user(image_part(file.getvalue()))).generate.mm_items
    assert load_rgb(file.getvalue()).size == (56, 112)
    assert item.grid == (1, 8, 4)


def test_a_rendered_request_travels(fronts: Fronts) -> None:
    generate = render(fronts(), user("x", image_part(RED)), stop=["x"], priority=3).generate
    sent, stream = decode_generate(encode_generate(generate, stream=True))
    sent.ec_transfer_params = generate.ec_transfer_params
    assert (sent, stream) == (generate, True)


def test_defaults_of_a_chat(fronts: Fronts) -> None:
    rendered = render(fronts())
    sampling, prompt = rendered.generate.sampling, rendered.generate.token_ids
    assert sampling.max_tokens == MAX_POSITIONS - len(prompt)
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.n) == (1.0, 1.0, 0, 1)
    assert sampling.seed is not None and sampling.seed != render(fronts()).generate.sampling.seed
    assert rendered.generate.model == rendered.output.model == NAME


def test_given_parameters_are_taken(fronts: Fronts) -> None:
    given: dict[str, Any] = {
        "n": 2,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "seed": 11,
        "presence_penalty": -2,
        "frequency_penalty": 2,
        "repetition_penalty": 1.1,
        "min_tokens": 2,
        "ignore_eos": True,
        "skip_special_tokens": False,
        "include_stop_str_in_output": True,
    }
    more = {
        "stop": "a",
        "stop_token_ids": [3],
        "logit_bias": {"5": -1.5},
        "max_completion_tokens": 9,
    }
    sampling = render(fronts(), **given, **more, logprobs=True, top_logprobs=4).generate.sampling
    assert {name: getattr(sampling, name) for name in given} == given
    assert (sampling.stop, sampling.stop_token_ids, sampling.logit_bias) == (
        ("a",),
        (3,),
        {5: -1.5},
    )
    assert (sampling.max_tokens, sampling.logprobs) == (9, 4)
    assert render(fronts(), logprobs=True).generate.sampling.logprobs == 0
    assert render(fronts(), logprobs=False, top_logprobs=0).generate.sampling.logprobs is None
    assert render(fronts(), top_k=-1).generate.sampling.top_k == 0


def test_greedy_requests_get_no_seed(fronts: Fronts) -> None:
    for temperature in (0, 1e-9):
        sampling = render(fronts(), temperature=temperature).generate.sampling
        assert sampling.greedy and sampling.seed is None
    assert render(fronts(), temperature=0, seed=5).generate.sampling.seed == 5


def test_the_model_may_bring_defaults(tmp_path: Path) -> None:
    model = write_model("qwen3", tmp_path)
    defaults = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "max_new_tokens": 33}
    (model / "generation_config.json").write_bytes(msgspec.json.encode(defaults))
    sampling = render(frontend(model)).generate.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.6, 20, 0.95)
    assert sampling.max_tokens == 33
    assert render(frontend(model), temperature=1).generate.sampling.temperature == 1.0
    plain = frontend(model, generation_defaults=False)
    assert render(plain).generate.sampling.temperature == 1.0


def test_prompts_become_requests(fronts: Fronts) -> None:
    front = fronts("llama")
    (one,) = render_prompts(front, "Hello there")
    bos = front.tokenizer.id("<|begin_of_text|>")
    assert one.generate.token_ids == [bos, *front.tokenizer.encode("Hello there")]
    assert one.generate.sampling.max_tokens == 16 and not one.output.chat
    (raw,) = render_prompts(front, "Hello there", add_special_tokens=False)
    assert raw.generate.token_ids == one.generate.token_ids[1:]
    (ids,) = render_prompts(front, [5, 6, 7], n=2)
    assert ids.generate.token_ids == [5, 6, 7] and ids.generate.request_id == "r"
    several = render_prompts(front, [[5], [6, 7]], n=2)
    assert [r.generate.token_ids for r in several] == [[5], [6, 7]]
    assert [r.generate.request_id for r in several] == ["r-0", "r-1"]
    assert [r.output.first_index for r in several] == [0, 2]


def test_of_several_prompts_one_hands_its_kv_over(fronts: Fronts) -> None:
    """An answer holds one handle; KV that no consumer can name stays until its lease ends."""
    wanted = {"do_remote_decode": True}
    several = render_prompts(fronts(), ["a", "b", "c"], kv_transfer_params=wanted)
    assert [one.generate.kv_transfer_params for one in several] == [wanted, None, None]


def test_special_tokens_of_a_raw_prompt_are_meant(fronts: Fronts) -> None:
    front = fronts()
    (rendered,) = render_prompts(front, "<|im_start|>user\n")
    assert rendered.generate.token_ids[0] == front.tokenizer.id("<|im_start|>")
