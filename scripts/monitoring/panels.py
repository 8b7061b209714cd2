"""The queries of the dashboards, and whether Prometheus' answers to them have figures."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

# What Grafana puts there for a scrape interval of 5 s: four times that.
_RATE_INTERVAL = "20s"
# Panels whose queries, or one of them, may have nothing before our own workers on a CPU.
EMPTY: Mapping[str, str] = MappingProxyType({
    "fleet: GPU memory": "this machine has no GPU",
    "slo: Time per output event": "the stack renders its requests, it relays none",
    "stages: Failed transfers": "no transfer failed: each cause has a series from its first on",
})  # fmt: skip


class PanelQuery(NamedTuple):
    """One query as a dashboard's file has it, with Grafana's variable replaced."""

    panel: str  # "dashboard: title"
    legend: str
    expr: str

    @property
    def dashboard(self) -> str:
        return self.panel.partition(":")[0]


class QueryResult(NamedTuple):
    """A query and the number of its series that had a figure."""

    query: PanelQuery
    series: int

    @property
    def explained(self) -> str:
        """Why it has none; "" if it should have some."""
        return EMPTY.get(self.query.panel, "")


def queries_of(folder: Path) -> Iterator[PanelQuery]:
    """Every query of the dashboards in `folder`, as Grafana would read them."""
    for file in sorted(folder.glob("*.json")):
        for panel in json.loads(file.read_text(encoding="utf-8"))["panels"]:
            for target in panel["targets"]:
                expr = target["expr"].replace("$__rate_interval", _RATE_INTERVAL)
                name = f"{file.stem}: {panel['title']}"
                yield PanelQuery(name, target["legendFormat"], expr)


def series_with_figures(result: Sequence[Mapping[str, Any]]) -> int:
    """Of the matrix of a range query. A quantile of nothing is NaN: no figure."""
    return sum(any(math.isfinite(float(value)) for _, value in one["values"]) for one in result)


def table(judged: Sequence[QueryResult]) -> list[str]:
    """Lines of Markdown: dashboards with counts, then each query that has no figure."""
    lines = ["| dashboard | queries | with figures | series |", "|---|---:|---:|---:|"]
    for name in dict.fromkeys(each.query.dashboard for each in judged):
        own = [each for each in judged if each.query.dashboard == name]
        found = [each for each in own if each.series]
        series = sum(each.series for each in own)
        lines.append(f"| {name} | {len(own)} | {len(found)} | {series} |")
    for each in judged:
        if not each.series:
            why = each.explained or f"MISSING: {each.query.expr}"
            lines.append(f"- {each.query.panel} ({each.query.legend}): {why}")
    return lines
