"""docs/api.md, row by row: each field does what its row says, through a proxy of each dialect."""

import urllib.request
from typing import Any

import pytest

from protocol.request_fields import RequestField, Route
from protocol.request_table import WORKS
from protocol.unsupported_fields import HARMLESS, REFUSED
from tests.conformance.asking import Dialect, Door, ids_of
from tests.conformance.covering import crossed, examples, neutral
from tests.conformance.probes import PROBES

Doors = dict[Dialect, Door]


def test_every_field_that_works_has_a_probe() -> None:
    assert set(PROBES) == {row.name for row in WORKS}


@pytest.mark.parametrize(("row", "route", "dialect"), crossed(WORKS))
def test_what_works_has_its_effect(
    row: RequestField, route: Route, dialect: Dialect, doors: Doors
) -> None:
    PROBES[row.name](doors[dialect], route)


@pytest.mark.parametrize(("row", "route", "dialect"), crossed(REFUSED))
def test_what_is_refused_is_named(
    row: RequestField, route: Route, dialect: Dialect, doors: Doors
) -> None:
    status, answer = doors[dialect].post(route, **{row.name: row.example})
    error = answer["error"]
    assert (status, error["type"]) == (400, "invalid_request_error")
    assert (error["param"], error["code"]) == (row.name, "unsupported_parameter")


@pytest.mark.parametrize("route", ["chat", "completions"])
def test_what_is_refused_may_ask_for_nothing(route: Any, door: Door) -> None:
    for fields in neutral(REFUSED, route):
        assert ids_of(door.ask(route, **fields)) == ids_of(door.base(route)), fields


@pytest.mark.parametrize("route", ["chat", "completions"])
def test_what_is_harmless_changes_nothing(route: Any, door: Door) -> None:
    fields = examples(HARMLESS, route)
    assert ids_of(door.ask(route, **fields)) == ids_of(door.base(route)), fields


@pytest.mark.parametrize("route", ["chat", "completions"])
def test_an_unknown_field_is_refused(route: Any, door: Door) -> None:
    status, answer = door.post(route, temprature=1)
    error = answer["error"]
    assert (status, error["param"], error["code"]) == (400, "temprature", "unknown_parameter")


@pytest.mark.parametrize("route", ["chat", "completions"])
def test_a_length_says_the_limit_and_what_was_asked(route: Any, door: Door) -> None:
    status, answer = door.post(route, max_tokens=1_000_000)
    error = answer["error"]
    assert (status, error["param"]) == (400, "max_tokens")
    assert error["code"] == "context_length_exceeded"
    assert "1000000" in error["message"] and "limit of" in error["message"]


def test_every_answer_has_a_request_id(door: Door) -> None:
    with urllib.request.urlopen(f"{door.url}/v1/models", timeout=10) as response:
        assert response.headers["x-request-id"]


def test_answers_have_a_fingerprint(door: Door) -> None:
    found = door.base("chat")["system_fingerprint"]
    assert found.startswith("fp_") and found == door.base("completions")["system_fingerprint"]
