"""docs/api.md and docs/routes.md say what the code does: they are made from the table that the
parser uses, and from the servers' routers."""

import re

from protocol.agent_fields import AGENT_FIELDS
from protocol.request_table import FIELDS
from scripts import api_reference, route_reference


def test_the_reference_is_current() -> None:
    assert api_reference.PATH.read_text() == api_reference.render(), (
        "run python -m scripts.api_reference"
    )


def test_every_field_stands_in_it() -> None:
    text = api_reference.render()
    assert [row.name for row in (*FIELDS, *AGENT_FIELDS) if f"| `{row.name}` |" not in text] == []


def test_the_routes_are_current() -> None:
    assert route_reference.PATH.read_text() == route_reference.render(), (
        "run python -m scripts.api_reference"
    )


def test_each_route_has_the_key_that_opens_it() -> None:
    text = route_reference.PATH.read_text()
    rows = re.findall(r"^\| (`.*`) \| (\w+) \|", text, re.MULTILINE)
    _, proxy, worker, master = (set(part) for part in _parts(text))
    keys = [{(route, key) for key, route in part} for part in (proxy, worker, master)]
    assert len(rows) > 50
    assert {("POST /instances", "admin"), ("GET /ready", "none"), ("GET /load", "API")} <= keys[0]
    assert {("POST /undrain", "fleet"), ("GET /ready", "none")} <= keys[1]
    assert {("POST /instances/role", "admin"), ("GET /metrics/fleet", "fleet")} <= keys[2]
    assert ("POST /drain", "fleet") in keys[2]


def _parts(text: str) -> list[list[tuple[str, str]]]:
    """(key, route) of each row, by heading."""
    return [
        [
            (key, route)
            for routes, key in re.findall(r"^\| (`.*`) \| (\w+) \|", part, re.MULTILINE)
            for route in re.findall(r"`([A-Z]+ [^`]+)`", routes)
        ]
        for part in text.split("\n## ")
    ]
