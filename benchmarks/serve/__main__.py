"""Runs the serving benchmark.

Exit status: 0 if at least one request succeeded, 1 if none did or the server is not there, 2 if
the options or the dataset are wrong.
"""

import sys
import uuid
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

import uvloop

from benchmarks.serve.args import Settings, parse
from benchmarks.serve.client import NETWORK_ERRORS, Client, Prepared, prepare
from benchmarks.serve.datasets import DatasetError, samples
from benchmarks.serve.metrics import accuracy, summarize
from benchmarks.serve.report import Report, failure_summary, save, table
from benchmarks.serve.runner import NotReadyError, run, wait_until_ready, warm_up
from benchmarks.serve.server import ServerError, find_model, open_session
from benchmarks.serve.tokens import TokenCounter, find_counter


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    settings = parse(argv)
    print(f"Settings that are not the default: {_chosen(settings)}")
    try:
        report: Report = uvloop.run(benchmark(settings))
    except DatasetError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (ServerError, NotReadyError, *NETWORK_ERRORS) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return _show(report)


async def benchmark(settings: Settings) -> Report:
    """Runs one benchmark.

    Raises:
        DatasetError: the dataset cannot be used.
        ServerError: the server names no model.
        NotReadyError: it gave no good answer before `ready_check_timeout_sec`.
    """
    async with open_session(settings) as session:
        model = await find_model(session, settings)
        places = (settings.tokenizer, model.id, model.root)
        counter = await find_counter(session, settings.base_url, model.name, *places)
        requests = await _prepared(settings, counter, model.name)
        client = Client(session, settings.base_url + settings.endpoint)
        measured, others = requests[: settings.num_prompts], requests[settings.num_prompts :]
        warming = others[: settings.num_warmups]
        if settings.ready_check_timeout_sec > 0:
            await wait_until_ready(client, requests[-1], settings.ready_check_timeout_sec)
        if warming:
            print(f"Warming up with {len(warming)} requests...", flush=True)
            warmed = await warm_up(client, warming, settings)
            print(failure_summary(warmed.outcomes) or "Warmup run completed.")
        _announce(settings, counter)
        finished = await run(client, measured, settings)
    return Report(
        settings=settings,
        model=model.id,
        tokenizer=counter.name,
        run=finished,
        metrics=summarize(
            finished.outcomes, finished.duration, settings.metric_percentiles, settings.goodput
        ),
        accuracy=accuracy(measured, finished.outcomes),
        date=datetime.now(),
    )


async def _prepared(settings: Settings, counter: TokenCounter, model: str) -> list[Prepared]:
    prefix = settings.request_id_prefix or f"bench-{uuid.uuid4().hex[:8]}-"
    requests: list[Prepared] = []
    async for sample in samples(settings, counter):
        requests.append(prepare(sample, settings, model, f"{prefix}{len(requests)}"))
    return requests


def _chosen(settings: Settings) -> dict[str, Any]:
    """What the options changed; names of headers only, since their values may be secrets."""
    chosen = asdict(settings) | {"headers": sorted(settings.headers)}
    default = asdict(parse([])) | {"headers": []}
    return {name: value for name, value in chosen.items() if value != default[name]}


def _announce(settings: Settings, counter: TokenCounter) -> None:
    process = "Poisson process" if settings.burstiness == 1 else "Gamma distribution"
    print(f"Token counts of the dataset: {counter.name}")
    print("Starting main benchmark run...")
    print(f"Traffic request rate: {settings.request_rate}")
    print(f"Burstiness factor: {settings.burstiness} ({process})")
    print(f"Maximum request concurrency: {settings.max_concurrency}", flush=True)


def _show(report: Report) -> int:
    print(table(report))
    if summary := failure_summary(report.run.outcomes):
        print(summary)
    for path in save(report):
        print(f"Result written to {path}")
    return 0 if report.metrics.completed else 1


if __name__ == "__main__":
    sys.exit(main())
