"""What a frontend serves: models by name, with and without pictures or a chat template."""

from pathlib import Path

import pytest

from protocol.errors import InvalidRequest
from tests.support.frontend_helpers import (
    NAME,
    Fronts,
    frontend,
    frontends,
    image_part,
    picture,
    render,
    render_prompts,
    text_part,
    user,
    write_model,
)
from tests.support.tiny_configs import MAX_POSITIONS

RED = picture(60, 40)


@pytest.fixture(scope="module")
def fronts(tmp_path_factory: pytest.TempPathFactory) -> Fronts:
    return frontends(tmp_path_factory.mktemp("models"))


PART = "messages[0].content[0]"


def test_text_models_refuse_pictures(fronts: Fronts) -> None:
    with pytest.raises(InvalidRequest) as caught:
        render(fronts("llama"), user(image_part(RED)))
    assert caught.value.code == "unsupported_media" and caught.value.param == PART


def test_text_models_join_text_parts(fronts: Fronts) -> None:
    front = fronts("llama")
    joined = render(front, [{"role": "user", "content": "a\nb"}]).generate.token_ids
    assert render(front, user("a", "b")).generate.token_ids == joined


def test_a_model_without_a_template_serves_completions_only(tmp_path: Path) -> None:
    model = write_model("llama", tmp_path)
    (model / "chat_template.jinja").unlink()
    front = frontend(model)
    with pytest.raises(InvalidRequest, match="template"):
        render(front)
    assert render_prompts(front)


def test_a_request_without_a_model_is_for_the_one_there_is(fronts: Fronts) -> None:
    assert render(fronts(), model=None).generate.model == NAME
    assert render(fronts(), [{"role": "user", "content": [text_part("x"), "y"]}]).generate.token_ids


def test_models_are_listed(fronts: Fronts) -> None:
    (card,) = fronts().served.cards().data
    assert (card.id, card.max_model_len) == (NAME, MAX_POSITIONS)
