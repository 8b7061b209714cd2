"""Several models of one server, by the names that requests give."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from protocol.errors import ConfigError, ModelNotFound, Unavailable
from services.frontend.config import FrontendConfig, MediaConfig
from services.frontend.models import Models
from services.frontend.render import Frontend
from services.frontend.spec import RenderedRequest
from tests.support.frontend_helpers import chat, image_part, picture, user, write_model


def config(path: Path, *names: str) -> FrontendConfig:
    return FrontendConfig(model=path, served_model_names=names, media=MediaConfig())


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Pictures, with an alias, and text, with an adapter."""
    root = tmp_path_factory.mktemp("models")
    pictures = write_model("qwen2_5_vl", root / "pictures")
    text = write_model("llama", root / "text")
    made = Models.load([config(pictures, "pictures", "eyes"), config(text, "text")])
    made.all[1].served.adapters = {"lora": "1"}
    return made


@pytest.mark.parametrize(
    ("name", "model"),
    [("pictures", "pictures"), ("eyes", "pictures"), ("text", "text"), ("lora", "text"),
     ("", "pictures"), (None, "pictures")],
)  # fmt: skip
def test_a_request_is_rendered_for_the_model_that_it_names(
    name: str | None, model: str, models: Models
) -> None:
    frontend = models.of(name)
    assert frontend.name == model and models.known(model) is frontend
    request = chat(user("Hello"), model=name)
    rendered = asyncio.run(frontend.render_chat(request, request_id="r"))
    assert (rendered.model, rendered.generate.model) == (model, name or model)
    assert rendered.generate.adapter_revision == ("1" if name == "lora" else "")


def test_a_name_of_no_model(models: Models) -> None:
    with pytest.raises(ModelNotFound, match="'other' is not served here"):
        models.of("other")
    with pytest.raises(ModelNotFound):
        models.card("other")


def test_an_only_model_judges_names_itself(models: Models) -> None:
    alone = Models(models.all[:1])
    assert alone.of("other") is alone.first and not alone.several
    with pytest.raises(ModelNotFound, match="'other' is not served here"):
        request = chat(user("Hello"), model="other")
        asyncio.run(alone.of("other").render_chat(request, request_id="r"))


def test_all_models_are_listed(models: Models) -> None:
    parents = {card.id: card.parent for card in models.cards().data}
    assert parents == {"pictures": None, "eyes": None, "text": None, "lora": "text"}
    assert models.names == tuple(parents)
    assert msgspec.json.encode(models.card("eyes")).startswith(b'{"id":"eyes"')


def test_a_name_for_two_models_is_refused(models: Models, tmp_path: Path) -> None:
    other = write_model("llama", tmp_path)
    with pytest.raises(ConfigError, match="--served-model-name: text names two models"):
        Models.load([config(other, "text"), config(other, "more", "text")])


def test_models_share_the_memory_for_media(tmp_path: Path) -> None:
    path, data = write_model("qwen2_5_vl", tmp_path), picture()
    (folder := tmp_path / "full").mkdir()
    media = MediaConfig(memory_bytes=len(data), spill_folder=folder)
    both = Models.load([FrontendConfig(path, (name,), media=media) for name in ("a", "b")])
    folder.rmdir()

    def rendered(frontend: Frontend) -> RenderedRequest:
        request = chat(user(image_part(data)), model=frontend.name)
        return asyncio.run(frontend.render_chat(request, request_id="r"))

    held = rendered(both.all[0])
    with pytest.raises(Unavailable, match="--media-spill-path"):
        rendered(both.all[1])
    del held
    assert rendered(both.all[1]).media
