"""Which of a table's rows are asked by which route and dialect, and which of them together."""

from collections.abc import Iterable
from typing import Any

import pytest

from protocol.request_fields import RequestField, Route
from tests.conformance.asking import DIALECTS, Json
from tests.support.thinned import thinned


def crossed(fields: Iterable[RequestField]) -> list[Any]:
    """(row, route, dialect): each row is asked by each of its routes, and in each dialect; a row of
    several routes by each in one dialect, and in the other slow."""
    kept: dict[tuple[str, Route, str], bool] = {}
    found = []
    for i, row in enumerate(fields):
        for j, route in enumerate(row.routes):
            for k, dialect in enumerate(DIALECTS):
                kept[row.name, route, dialect] = len(row.routes) == 1 or (i + j + k) % 2 == 0
                found.append((row, route, dialect))
    return _named(thinned(found, lambda row, route, dialect: kept[row.name, route, dialect]))


def one_route(fields: Iterable[RequestField]) -> list[Any]:
    """(row, route): each row is asked by one of its routes, and by the others slow."""
    chosen: set[tuple[str, Route]] = set()
    found = []
    for i, row in enumerate(fields):
        chosen.add((row.name, row.routes[i % len(row.routes)]))
        found += [(row, route) for route in row.routes]
    return _named(thinned(found, lambda row, route: (row.name, route) in chosen))


def _named(params: list[Any]) -> list[Any]:
    """As `parametrize` takes them, by the names of rows, routes and dialects."""
    return [
        pytest.param(row, *rest, id="-".join((row.name, *rest)), marks=param.marks)
        for param in params
        for row, *rest in [param.values]
    ]


def neutral(fields: Iterable[RequestField], route: Route) -> list[Json]:
    """Requests that together have each value of each refused field that asks for nothing."""
    values = {row.name: (None, *row.neutral) for row in fields if route in row.routes}
    return [
        {name: chosen[min(i, len(chosen) - 1)] for name, chosen in values.items()}
        for i in range(max(map(len, values.values()), default=0))
    ]


def examples(fields: Iterable[RequestField], route: Route) -> Json:
    """All fields at once."""
    return {row.name: row.example for row in fields if route in row.routes}
