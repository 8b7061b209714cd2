"""What a run beside real vLLM is made of."""

from pathlib import Path

import pytest

from scripts.interop.__main__ import PARTS
from scripts.interop.model import _take_types

ROOT = Path(__file__).parents[3]
_IN_PROSE = ("two", "three", "mixed", "ours", "scripts")  # the tables name their workers


def test_every_part_has_its_figures_in_the_docs() -> None:
    text = (ROOT / "docs/interop.md").read_text()
    assert [name for name in PARTS if f"`{name}`" not in text and name not in _IN_PROSE] == []


def test_a_template_that_does_not_ask_for_sound_is_no_template_of_ours(tmp_path: Path) -> None:
    template = tmp_path / "chat_template.jinja"
    template.write_text("{% if 'audio' in part %}")
    _take_types(template)
    assert template.read_text() == "{% if 'audio' in part or part['type'] == 'audio' %}"
    template.write_text("{{ part }}")
    with pytest.raises(AssertionError, match="does not ask whether a part"):
        _take_types(template)
