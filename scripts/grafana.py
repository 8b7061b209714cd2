"""Dashboards in Grafana's format: graphs in two columns, each of one or more queries."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

_COLUMNS, _HEIGHT = 2, 8
_WIDTH = 24 // _COLUMNS


class Query(NamedTuple):
    """PromQL, and how its series are called."""

    expr: str
    legend: str


class Panel(NamedTuple):
    """One graph. `text`: what it tells and what to do about it."""

    title: str
    unit: str
    text: str
    queries: tuple[Query, ...]


class Dashboard(NamedTuple):
    """One file."""

    name: str
    title: str
    panels: tuple[Panel, ...]


def render(dashboard: Dashboard) -> str:
    """A file of Grafana's."""
    source = {"type": "datasource", "name": "datasource", "query": "prometheus", "label": "Source"}
    whole = {
        "uid": f"triptych-{dashboard.name}",
        "title": dashboard.title,
        "tags": ["triptych"],
        "schemaVersion": 41,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": [source]},
        "links": [_links()],
        "panels": [_panel(panel, number) for number, panel in enumerate(dashboard.panels)],
    }
    return json.dumps(whole, indent=1) + "\n"


def _links() -> dict[str, Any]:
    """The other dashboards, in the head of each."""
    return {
        "type": "dashboards", "tags": ["triptych"], "title": "Triptych", "asDropdown": True,
        "includeVars": True, "keepTime": True,
    }  # fmt: skip


def _panel(panel: Panel, number: int) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    row, column = divmod(number, _COLUMNS)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": source,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": _targets(panel.queries, source),
    }


def _targets(queries: Sequence[Query], source: dict[str, str]) -> list[dict[str, Any]]:
    return [
        {"refId": chr(ord("A") + i), "datasource": source, "expr": query.expr,
         "legendFormat": query.legend}
        for i, query in enumerate(queries)
    ]  # fmt: skip
