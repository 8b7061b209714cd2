"""docs/api.md for /v1/responses, /v1/messages and /v1/messages/count_tokens, row by row: each field
does what its row says, through a proxy of each dialect, whole and streamed."""

from typing import Any

import pytest

from protocol.agent_fields import AGENT_FIELDS, MESSAGES, RESPONSES
from protocol.request_fields import RequestField, Route, State
from tests.conformance.agent_probes import AgentProbe
from tests.conformance.agents import Agent
from tests.conformance.asking import Door
from tests.conformance.covering import examples, neutral
from tests.conformance.message_probes import MESSAGE_PROBES
from tests.conformance.response_probes import RESPONSE_PROBES

PROBES: dict[Route, dict[str, AgentProbe]] = {
    "responses": RESPONSE_PROBES,
    "messages": MESSAGE_PROBES,
}


def of(state: State) -> list[RequestField]:
    return [row for row in AGENT_FIELDS if row.state == state]


def rows(state: State) -> list[Any]:
    return [pytest.param(row, id=f"{row.name}-{row.routes[0]}") for row in of(state)]


def agent_of(door: Door, row: RequestField) -> Agent:
    (route,) = row.routes
    return Agent(door, route)


@pytest.mark.parametrize(("route", "table"), [("responses", RESPONSES), ("messages", MESSAGES)])
def test_every_field_that_works_has_a_probe(route: Any, table: tuple[RequestField, ...]) -> None:
    assert set(PROBES[route]) == {row.name for row in table if row.state == "works"}


@pytest.mark.parametrize("row", rows("works"))
def test_what_works_has_its_effect(row: RequestField, door: Door) -> None:
    agent = agent_of(door, row)
    PROBES[agent.route][row.name](agent)


@pytest.mark.parametrize("row", rows("refused"))
def test_what_is_refused_is_named(row: RequestField, door: Door) -> None:
    agent = agent_of(door, row)
    answers = [agent.post(**{row.name: row.example})]
    if agent.route == "messages":
        answers.append(agent.count(**{row.name: row.example}))
    for status, answer in answers:
        assert status == 400 and answer["error"]["type"] == "invalid_request_error"
        assert f"{row.name} is not supported" in answer["error"]["message"]


@pytest.mark.parametrize("route", PROBES)
def test_what_is_refused_may_ask_for_nothing(route: Any, door: Door) -> None:
    agent = Agent(door, route)
    for fields in neutral(of("refused"), route):
        assert agent.ask(**fields) == agent.base(), fields


@pytest.mark.parametrize("route", PROBES)
def test_what_is_harmless_changes_nothing(route: Any, door: Door) -> None:
    agent, fields = Agent(door, route), examples(of("harmless"), route)
    assert agent.ask(**fields) == agent.base(), fields


@pytest.mark.parametrize("route", PROBES)
def test_an_unknown_field_is_refused(route: Any, door: Door) -> None:
    Agent(door, route).refused("temprature", temprature=1)


def test_a_count_names_what_is_wrong(door: Door) -> None:
    agent = Agent(door, "messages")
    for name, value in (("temprature", 1), ("messages", []), ("tools", [{"name": 5}])):
        status, answer = agent.count(**{name: value})
        assert status == 400 and name in answer["error"]["message"], answer
    assert agent.count(model="other")[0] == 404
