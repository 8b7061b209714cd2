"""The result as a table, in the form of `vllm bench serve`, and as its JSON."""

import json
import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.serve.args import Settings
from benchmarks.serve.client import Outcome
from benchmarks.serve.metrics import Accuracy, Metrics, failures
from benchmarks.serve.runner import Run

WIDTH = 50
MAX_REASONS = 10
TITLES = (
    ("ttft", "Time to First Token"),
    ("tpot", "Time per Output Token (excl. 1st token)"),
    ("itl", "Inter-token Latency"),
    ("e2el", "End-to-end Latency"),
)


@dataclass(frozen=True)
class Report:
    """Everything that is known of a finished run."""

    settings: Settings  # options of the run
    model: str  # its name in requests
    tokenizer: str  # what counted the tokens
    run: Run  # what came of each request
    metrics: Metrics  # figures over all requests
    accuracy: Accuracy | None  # None unless the questions have right answers
    date: datetime  # of the end


def table(report: Report) -> str:
    """The result table."""
    lines = [f"{' Serving Benchmark Result ':=^{WIDTH}}", *_totals(report)]
    for name, title in TITLES:
        if name in report.settings.percentile_metrics:
            lines += [f"{title:-^{WIDTH}}", *_latency(report.metrics, name)]
    lines += _accuracy(report.accuracy)
    return "\n".join([*lines, "=" * WIDTH])


def failure_summary(outcomes: Sequence[Outcome]) -> str:
    """Why requests failed, the most frequent reasons first; empty if none did."""
    reasons = failures(outcomes)
    if not reasons:
        return ""
    lines = [f"{count:>6} x {reason}" for reason, count in reasons[:MAX_REASONS]]
    if len(reasons) > MAX_REASONS:
        lines.append(f"       {len(reasons) - MAX_REASONS} more reasons")
    return "\n".join(["Failed requests by reason:", *lines])


def result(report: Report) -> dict[str, Any]:
    """The result with the keys of vLLM's JSON; values per request with `--save-detailed`."""
    settings, metrics = report.settings, report.metrics
    values: dict[str, Any] = {
        "date": report.date.strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": settings.backend,
        "backend": settings.backend,
        "label": settings.label,
        "model_id": report.model,
        "tokenizer_id": report.tokenizer,
        "num_prompts": len(report.run.outcomes),
        **settings.metadata,
        "request_rate": _number(settings.request_rate),
        "burstiness": _number(settings.burstiness),
        "max_concurrency": settings.max_concurrency,
        "duration": report.run.duration,
        "completed": metrics.completed,
        "failed": metrics.failed,
        "total_input_tokens": metrics.total_input,
        "total_output_tokens": metrics.total_output,
        "request_throughput": metrics.request_throughput,
        "request_goodput": metrics.request_goodput,
        "output_throughput": metrics.output_throughput,
        "total_token_throughput": metrics.total_throughput,
        "max_output_tokens_per_s": metrics.peak_output_throughput,
        "max_concurrent_requests": metrics.peak_concurrency,
        "dataset_name": settings.dataset_name,
        "seed": settings.seed,
        "environment": environment(),
        **_latency_values(metrics, settings.percentile_metrics),
        **_accuracy_values(report.accuracy),
    }
    return values | (_details(report.run) if settings.save_detailed else {})


def save(report: Report) -> list[Path]:
    """Writes the JSON to where the options say; returns the files."""
    settings = report.settings
    paths = [settings.json] if settings.json is not None else []
    if settings.save_result:
        paths.append((settings.result_dir or Path()) / (settings.result_filename or _name(report)))
    text = json.dumps(result(report), indent=2) + "\n" if paths else ""
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return paths


def environment() -> dict[str, Any]:
    """The machine that the load came from."""
    return {
        "platform": platform.platform(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }


def _totals(report: Report) -> Iterator[str]:
    settings, metrics = report.settings, report.metrics
    yield _line("Successful requests:", metrics.completed)
    yield _line("Failed requests:", metrics.failed)
    if settings.max_concurrency is not None:
        yield _line("Maximum request concurrency:", settings.max_concurrency)
    if settings.request_rate != float("inf"):
        yield _line("Request rate configured (RPS):", settings.request_rate)
    yield _line("Benchmark duration (s):", report.run.duration)
    yield _line("Total input tokens:", metrics.total_input)
    yield _line("Total generated tokens:", metrics.total_output)
    yield _line("Request throughput (req/s):", metrics.request_throughput)
    if metrics.request_goodput is not None:
        yield _line("Request goodput (req/s):", metrics.request_goodput)
    yield _line("Output token throughput (tok/s):", metrics.output_throughput)
    yield _line("Peak output token throughput (tok/s):", metrics.peak_output_throughput)
    yield _line("Peak concurrent requests:", float(metrics.peak_concurrency))
    yield _line("Total token throughput (tok/s):", metrics.total_throughput)


def _latency(metrics: Metrics, name: str) -> Iterator[str]:
    stats, label = metrics.latencies[name], f"{name.upper()} (ms):"
    yield _line(f"Mean {label}", stats.mean)
    yield _line(f"Median {label}", stats.median)
    for percentile, value in stats.percentiles:
        yield _line(f"P{percentile:g} {label}", value)


def _accuracy(accuracy: Accuracy | None) -> Iterator[str]:
    if accuracy is None:
        return
    yield f"{'Answer Accuracy':-^{WIDTH}}"
    yield _line("Correct answers:", f"{accuracy.right.total()}/{accuracy.asked.total()}")
    yield _line("Accuracy:", accuracy.share)
    for kind, asked in accuracy.asked.items():
        if kind:
            yield _line(f"Accuracy of {kind}:", f"{accuracy.right[kind]}/{asked}")


def _line(label: str, value: float | str) -> str:
    """One row: whole numbers as they are, others with two decimals."""
    return f"{label:<40} {value:<10.2f}" if isinstance(value, float) else f"{label:<40} {value:<10}"


def _latency_values(metrics: Metrics, names: Sequence[str]) -> dict[str, float]:
    values: dict[str, float] = {}
    for name in names:
        stats = metrics.latencies[name]
        values |= {
            f"mean_{name}_ms": stats.mean,
            f"median_{name}_ms": stats.median,
            f"std_{name}_ms": stats.std,
        }
        values |= {f"p{percentile:g}_{name}_ms": value for percentile, value in stats.percentiles}
    return values


def _accuracy_values(accuracy: Accuracy | None) -> dict[str, Any]:
    if accuracy is None:
        return {}
    by_kind = {kind: accuracy.right[kind] / asked for kind, asked in accuracy.asked.items() if kind}
    return {"accuracy": accuracy.share, "accuracy_by_kind": by_kind}


def _details(run: Run) -> dict[str, Any]:
    return {
        "input_lens": [outcome.prompt_len for outcome in run.outcomes],
        "output_lens": [outcome.output_len for outcome in run.outcomes],
        "ttfts": [outcome.ttft for outcome in run.outcomes],
        "itls": [outcome.itls for outcome in run.outcomes],
        "latencies": [outcome.latency for outcome in run.outcomes],
        "start_times": [outcome.start for outcome in run.outcomes],
        "queue_times": [outcome.queued for outcome in run.outcomes],
        "generated_texts": [outcome.text for outcome in run.outcomes],
        "errors": [outcome.error for outcome in run.outcomes],
    }


def _name(report: Report) -> str:
    settings = report.settings
    limit = f"-concurrency{settings.max_concurrency}" if settings.max_concurrency else ""
    model = report.model.rstrip("/").rpartition("/")[2]
    label = settings.label or settings.backend
    stamp = report.date.strftime("%Y%m%d-%H%M%S")
    return f"{label}-{settings.request_rate}qps{limit}-{model}-{stamp}.json"


def _number(value: float) -> float | str:
    """JSON has no infinity."""
    return "inf" if value == float("inf") else value
