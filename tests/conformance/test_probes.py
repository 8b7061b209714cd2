"""Each probe fails where its field is ignored: with the field left out of all that it asks."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pytest

from protocol.agent_fields import AGENT_FIELDS
from protocol.request_fields import RequestField, Route
from protocol.request_table import WORKS
from tests.conformance.agents import Agent, Said
from tests.conformance.asking import Dialect, Door, Json
from tests.conformance.covering import one_route
from tests.conformance.probes import PROBES
from tests.conformance.test_agent_fields import PROBES as AGENT_PROBES

_ELSEWHERE = "the model here takes no pictures and clips: tests/integration asks ones that do"
_HANDLES = "workers give and take what has an effect: see the tests of the dialects"
REFUSALS_ALONE: Mapping[str, str] = MappingProxyType({
    "add_special_tokens": "this model's tokenizer adds none",
    "priority": "an order among requests that wait",
    "session_id": "chooses the worker that a conversation stays with",
    "chat_id": "as session_id",
    "template_key": "the model here has one template",
    "truncation": "the one value that is taken is the default",
    "include": "the one value that is taken has no effect",
    "mm_processor_kwargs": _ELSEWHERE,
    "media_io_kwargs": _ELSEWHERE,
    "ec_transfer_params": _HANDLES,
    "kv_transfer_params": _HANDLES,
})  # fmt: skip
"""Fields whose probes see no effect but that wrong values are refused, and why."""
_LENGTHS = ("max_tokens", "max_output_tokens", "extra_configs")
_FAILURES = (AssertionError, LookupError, StopIteration, TypeError, ValueError)


def without(body: Json, name: str) -> Json:
    """Outputs whose length is not given stay short, so that tests do."""
    rest = {given: value for given, value in body.items() if given != name}
    if name in _LENGTHS and name in body:
        rest["max_tokens" if name == "extra_configs" else name] = 24
    return rest


@dataclass
class Forgetful(Door):
    """Leaves a field out of its requests, and does not mind what is not refused."""

    forgotten: str = ""

    @classmethod
    def of(cls, door: Door, forgotten: str) -> "Forgetful":
        return cls(door.dialect, door.url, door.worker, door.known, forgotten)

    def body(self, route: Route, **fields: Any) -> Json:
        return without(super().body(route, **fields), self.forgotten)

    def refused(self, route: Route, param: str, **fields: Any) -> None:
        pass


@dataclass(frozen=True)
class ForgetfulAgent(Agent):
    """As `Forgetful`. It asks for whole answers alone: streams that differ would fail too."""

    forgotten: str = ""

    def body(self, **fields: Any) -> Json:
        return without(super().body(**fields), self.forgotten)

    def ask(self, **fields: Any) -> Said:
        return self.draw(**fields)

    def refused(self, param: str, **fields: Any) -> None:
        pass


def rows(fields: Iterable[RequestField]) -> list[Any]:
    seen = [r for r in fields if r.state == "works" and r.name not in REFUSALS_ALONE]
    return one_route(seen)


@pytest.mark.parametrize(("row", "route"), rows(WORKS))
def test_a_probe_misses_its_field(
    row: RequestField, route: Any, doors: dict[Dialect, Door]
) -> None:
    with pytest.raises(_FAILURES):
        PROBES[row.name](Forgetful.of(doors["tokens"], row.name), route)


@pytest.mark.parametrize(("row", "route"), rows(AGENT_FIELDS))
def test_an_agents_probe_misses_its_field(
    row: RequestField, route: Any, doors: dict[Dialect, Door]
) -> None:
    with pytest.raises(_FAILURES):
        AGENT_PROBES[route][row.name](ForgetfulAgent(doors["tokens"], route, row.name))


def test_the_exceptions_are_fields() -> None:
    assert set(REFUSALS_ALONE) <= {row.name for row in (*WORKS, *AGENT_FIELDS)}
