"""Model directories without weights, pictures and requests for the frontend's tests; no torch."""

import asyncio
import base64
import json
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
from PIL import Image

from protocol.openai import ChatCompletionRequest, CompletionRequest, decode_chat, decode_completion
from services.frontend.config import FrontendConfig, MediaConfig
from services.frontend.families import Family, load_family
from services.frontend.model_info import ModelInfo
from services.frontend.render import Frontend
from services.frontend.spec import RenderedRequest
from services.frontend.tokenizer import Tokenizer
from tests.support import tiny_text
from tests.support.tiny_configs import SPECS

NAME = "tiny"
Json = dict[str, Any]
Fronts = Callable[..., Frontend]


def write_model(family: str, path: Path, **config: Any) -> Path:
    """Everything of a tiny model's directory but its weights. `config` overrides config.json."""
    spec = SPECS[family]
    path.mkdir(parents=True, exist_ok=True)
    tokenizer = tiny_text.write(spec.text, path)
    values = spec.config(lambda token: tokenizer.encode(token, add_special_tokens=False).ids[0])
    text = values.get("text_config", values)
    text["vocab_size"] = tokenizer.get_vocab_size()
    eos = [tokenizer.token_to_id(token) for token in spec.text.eos]
    files = {
        "config.json": {"model_type": family, **values, **config},
        "generation_config.json": {"eos_token_id": eos},
        **spec.files(),
    }
    for name, content in files.items():
        (path / name).write_text(json.dumps(content))
    return path


def frontend(model: Path, *, media: Mapping[str, Any] | None = None, **options: Any) -> Frontend:
    return Frontend.load(
        FrontendConfig(
            model=model,
            served_model_names=(NAME,),
            media=MediaConfig(**(media or {})),
            **options,
        )
    )


def picture(width: int = 60, height: int = 40, colour: str = "red", form: str = "PNG") -> bytes:
    file = BytesIO()
    Image.new("RGB", (width, height), colour).save(file, form)
    return file.getvalue()


def data_url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def image_part(data: bytes, **fields: Any) -> Json:
    return {"type": "image_url", "image_url": {"url": data_url(data)}, **fields}


def text_part(text: str) -> Json:
    return {"type": "text", "text": text}


def user(*parts: str | Json) -> list[Json]:
    """One user turn; strings are text parts."""
    return [{"role": "user", "content": [text_part(p) if isinstance(p, str) else p for p in parts]}]


def chat(messages: list[Json] | None = None, **fields: Any) -> ChatCompletionRequest:
    """A chat request as it comes out of its JSON body."""
    messages = user("Hello") if messages is None else messages
    return decode_chat(msgspec.json.encode({"model": NAME, "messages": messages, **fields}))


def completion(prompt: Any = "Hello", **fields: Any) -> CompletionRequest:
    return decode_completion(msgspec.json.encode({"model": NAME, "prompt": prompt, **fields}))


def frontends(root: Path) -> Fronts:
    """Frontends by family and options, each made once, their models under `root`."""
    made = dict[str, Frontend]()

    def get(family: str = "qwen2_5_vl", **options: Any) -> Frontend:
        key = f"{family} {options}"
        if key not in made:
            made[key] = frontend(write_model(family, root / str(len(made))), **options)
        return made[key]

    return get


def render(front: Frontend, messages: Any = None, **fields: Any) -> RenderedRequest:
    return asyncio.run(front.render_chat(chat(messages, **fields), request_id="r"))


def render_prompts(front: Frontend, prompt: Any = "Hello", **fields: Any) -> list[RenderedRequest]:
    request = completion(prompt, **fields)
    return asyncio.run(front.render_completion(request, request_id="r"))


def family_in(model: Path, **overrides: Any) -> Family:
    info = ModelInfo.load(model, processor_overrides=overrides)
    return load_family(info, Tokenizer.load(info))
