"""docs/api.md says what the code does: it is made from the table that the parser uses."""

from protocol.agent_fields import AGENT_FIELDS
from protocol.request_table import FIELDS
from scripts import api_reference


def test_the_reference_is_current() -> None:
    assert api_reference.PATH.read_text() == api_reference.render(), (
        "run python -m scripts.api_reference"
    )


def test_every_field_stands_in_it() -> None:
    text = api_reference.render()
    assert [row.name for row in (*FIELDS, *AGENT_FIELDS) if f"| `{row.name}` |" not in text] == []
