"""`python -m scripts.references`: writes docs/flags.md and docs/metrics.md from the code."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from prometheus_client import CollectorRegistry

from connectors.meter import BUCKETS_S, TransferStats
from protocol.histogram import Histogram
from protocol.options import Rule, help_of, rule_of, sections
from protocol.settings import flag_of
from proxy.config import ProxyConfig
from proxy.fleet.fleet import Fleet
from proxy.metrics import ProxyMetrics
from services.engine.messages import Statistics
from services.master.api.service import MasterService
from services.master.config import MasterConfig
from services.mock.config import MockConfig
from services.worker.config import WorkerConfig
from services.worker.engine_metrics import ENGINE_COUNTERS, ENGINE_GAUGES, ENGINE_HISTOGRAMS
from services.worker.metrics import WorkerMetrics
from triptych.launch.list_workers import ListConfig
from triptych.launch.options import ServeConfig
from triptych.launch.restart import RestartConfig

DOCS = Path(__file__).parents[1] / "docs"
_COMMANDS: tuple[tuple[str, type[Any]], ...] = (
    ("triptych serve", ServeConfig),
    ("triptych restart", RestartConfig),
    ("triptych proxy", ProxyConfig),
    ("triptych master", MasterConfig),
    ("triptych encode, prefill, decode, fusion and any", WorkerConfig),
    ("triptych mock", MockConfig),
    ("triptych list", ListConfig),
)
_FLAGS = """# Flags

Written by `python -m scripts.references` from the code. Every option of a process is a flag, an
environment variable and a line of the YAML file that `--config` names. A flag wins over a variable,
a variable over the file. The variable is `TRIPTYCH_` and the option's name in capitals
(`--max-num-seqs`: `TRIPTYCH_MAX_NUM_SEQS`); some have a second name, which is given here. A switch
is turned off by `--no-` before its name.
"""
_METRICS = """# Metrics

Written by `python -m scripts.references` from the code. Every process answers `GET /metrics` in
Prometheus' text format. A counter starts at 0 with its process; a histogram has the series
`_bucket`, `_sum` and `_count`.

A prompt is counted once in a fleet: as `triptych:prompt_tokens_total` of the worker that computed
it or found it in its prefix cache. The worker that gets its KV and decodes counts it as
`triptych:received_tokens_total`. The share of prompt tokens that prefix caches have saved is
`sum(rate(triptych:cached_tokens_total[5m])) / sum(rate(triptych:prompt_tokens_total[5m]))`. An
output token is counted by the worker that made it. A request that prefill hands over is
`handed_over` there and succeeds where its last token is made. The histograms of a worker's stages
and lengths follow the same rule: queue, prefill and the prompt's length where the prompt is
computed, the wait for KV, decode and the output's length where the last token is made. Time to the
first token, inference and latency are each worker's own: look at one role.

The proxy has histograms by model (`triptych_proxy:model_*`) of all requests that it renders. Those
that it relays (`--dialect openai`) are counted there only with `--log-requests`: a relay that is as
fast as it can be notes nothing of a request. Its histograms without a model
(`triptych_proxy:e2e_request_latency_seconds`, of streams also
`triptych_proxy:time_to_first_token_seconds`) and its errors count relayed requests in any case.

A worker's label `model` is the name that it serves its model by; requests for a LoRA adapter of it
count there too.
"""


class MetricRow(NamedTuple):
    """One metric as the reference shows it."""

    name: str
    kind: str
    labels: str
    text: str


def flags_page() -> str:
    """docs/flags.md."""
    lines = [_FLAGS]
    for command, config in _COMMANDS:
        lines += [f"## {command}", ""]
        fields = {field.name: field for field in dataclasses.fields(config)}
        types = get_type_hints(config)
        for heading, names in sections(config).items():
            lines += [
                f"### {heading}",
                "",
                "| flag | value | default | meaning |",
                "|---|---|---|---|",
            ]
            lines += [_flag_row(config, fields[name], types[name]) for name in names]
            lines.append("")
    return "\n".join(lines)


def _flag_row(config: type[Any], field: dataclasses.Field[Any], kind: type) -> str:
    rule = rule_of(field)
    default = str(field.default).lower() if kind is bool else str(field.default)
    names = [*rule.flags, *([rule.env] if rule.env else [])]
    also = f" Also {', '.join(f'`{name}`' for name in names)}." if names else ""
    meaning = help_of(config, field) + also
    shown = f"`{default}`" if default else "empty"
    return _row(f"`{flag_of(field.name)}`", _value(rule, kind), shown, meaning)


def _value(rule: Rule, kind: type) -> str:
    if rule.choices:
        return ", ".join(f"`{choice}`" for choice in rule.choices)
    if kind is bool:
        return "switch"
    return " ".join(filter(None, (rule.unit, rule.range())))


class _NoMaster:
    """What a proxy with `--master-url` has, so that what it says of masters is there."""

    failovers = 0
    present = False


def metrics_page() -> str:
    """docs/metrics.md."""
    lines = [_METRICS]
    for process, registry in _registries():
        lines += [f"## {process}", "", "| metric | type | labels | meaning |", "|---|---|---|---|"]
        lines += [
            _row(f"`{row.name}`", row.kind, row.labels, row.text)
            for row in sorted(set(_metric_rows(registry)))
        ]
        lines.append("")
    return "\n".join(lines)


def _registries() -> Iterator[tuple[str, CollectorRegistry]]:
    yield "Proxy", ProxyMetrics(Fleet(), _NoMaster()).registry
    yield "Master", asyncio.run(_master())
    worker = WorkerMetrics("role")
    figures = dict.fromkeys(ENGINE_GAUGES, 0.0), dict.fromkeys(ENGINE_COUNTERS, 0.0)
    moved = TransferStats("kv", "shm", buckets=[0] * (len(BUCKETS_S) + 1))
    histograms = dict.fromkeys(ENGINE_HISTOGRAMS, Histogram.of(()))
    worker.render(Statistics(0, *figures, [moved], histograms))
    yield "Worker", worker.registry


async def _master() -> CollectorRegistry:
    """With other masters beside it, so that what it says of them is there."""
    return MasterService(MasterConfig(redis_url="redis://localhost")).metrics.registry


def _metric_rows(registry: CollectorRegistry) -> Iterator[MetricRow]:
    for collector in list(registry._collector_to_names):
        for family in collector.collect():
            # Neither kind says in public which labels it has before there is a sample.
            names = getattr(collector, "_labelnames", ()) or getattr(family, "_labelnames", ())
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels = ", ".join(f"`{label}`" for label in names)
            yield MetricRow(name, family.type, labels, family.documentation)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def main() -> None:
    for name, page in (("flags.md", flags_page()), ("metrics.md", metrics_page())):
        (DOCS / name).write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
