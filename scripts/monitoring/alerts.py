"""The rules that Prometheus gets, and when each alert began to be pending and to fire."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

_SECONDS: Mapping[str, int] = {"s": 1, "m": 60, "h": 3600}
_DURATION = re.compile(r"(\d+)([smh])")


def seconds_of(duration: str) -> float:
    """Seconds in a duration of Prometheus' notation with one unit, such as 30s or 2m. `ValueError`
    for any other."""
    found = _DURATION.fullmatch(duration)
    if found is None:
        raise ValueError(f"not a duration of one unit: {duration}")
    return float(int(found[1]) * _SECONDS[found[2]])


def shorter(duration: str, divisor: float) -> str:
    """In milliseconds, since Prometheus takes whole numbers alone."""
    return f"{round(1000 * seconds_of(duration) / divisor)}ms"


def shortened_rules(rules: str, divisor: float) -> str:
    """The file with each alert's `for` divided; windows of rates stay as they are."""
    whole = yaml.safe_load(rules)
    for group in whole["groups"]:
        for rule in group["rules"]:
            if "for" in rule:
                rule["for"] = shorter(rule["for"], divisor)
    return yaml.safe_dump(whole, sort_keys=False)


def shortened_config(config: str, divisor: float) -> str:
    """The file with its evaluation interval divided; the scrape interval stays as it is."""
    whole = yaml.safe_load(config)
    interval = whole["global"]["evaluation_interval"]
    whole["global"]["evaluation_interval"] = shorter(interval, divisor)
    return yaml.safe_dump(whole, sort_keys=False)


@dataclass
class AlertTimes:
    """One alert, in seconds after the worker was killed; None: not seen in that state."""

    name: str
    labels: Mapping[str, str]
    pending_s: float | None = None
    firing_s: float | None = None


@dataclass
class Journal:
    """What was seen of the alerts, in the order in which they appeared."""

    seen: dict[tuple[tuple[str, str], ...], AlertTimes] = field(default_factory=dict)

    def note(self, after_s: float, alerts: Iterable[Mapping[str, Any]]) -> None:
        """`alerts`: those of Prometheus' /api/v1/alerts."""
        for alert in alerts:
            labels = dict(alert["labels"])
            name, key = labels.pop("alertname"), tuple(sorted(alert["labels"].items()))
            entry = self.seen.setdefault(key, AlertTimes(name, labels))
            if alert["state"] == "pending" and entry.pending_s is None:
                entry.pending_s = after_s
            if alert["state"] == "firing" and entry.firing_s is None:
                entry.firing_s = after_s

    def has_fired(self, name: str, label: str, value: str) -> bool:
        """Whether it was seen pending and then firing."""
        return any(
            each.pending_s is not None
            and each.firing_s is not None
            and each.pending_s < each.firing_s
            for each in self.seen.values()
            if each.name == name and each.labels.get(label) == value
        )

    def table(self, named: Sequence[str] = ("instance", "role", "url", "stage")) -> list[str]:
        """Lines of Markdown; of the labels those that are `named`. A rule without a wait is never
        pending."""
        lines = ["| alert | of | pending after | firing after |", "|---|---|---:|---:|"]
        for each in self.seen.values():
            labels = ", ".join(
                f"{name} {each.labels[name]}" for name in named if name in each.labels
            )
            times = f"{_said(each.pending_s)} | {_said(each.firing_s)}"
            lines.append(f"| {each.name} | {labels} | {times} |")
        return lines


def _said(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:.1f} s"
