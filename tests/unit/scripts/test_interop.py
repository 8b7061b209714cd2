"""What a run beside real vLLM is made of."""

from pathlib import Path

import pytest

from scripts.interop.__main__ import NOT_ENDED_YET, PARTS
from scripts.interop.model import _take_types

ROOT = Path(__file__).parents[3]


def test_parts_that_are_left_out_are_said_to_be() -> None:
    assert set(NOT_ENDED_YET) < set(PARTS)
    for page in ("docs/interop.md", "docs/releasing.md"):
        text = (ROOT / page).read_text()
        assert all(f"`{name}`" in text for name in NOT_ENDED_YET), page


def test_a_template_that_does_not_ask_for_sound_is_no_template_of_ours(tmp_path: Path) -> None:
    template = tmp_path / "chat_template.jinja"
    template.write_text("{% if 'audio' in part %}")
    _take_types(template)
    assert template.read_text() == "{% if 'audio' in part or part['type'] == 'audio' %}"
    template.write_text("{{ part }}")
    with pytest.raises(AssertionError, match="does not ask whether a part"):
        _take_types(template)
