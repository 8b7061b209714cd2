"""Numbers of a run, defined as `vllm bench serve` defines them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.common.judging import agrees
from benchmarks.serve.client import Outcome, Prepared

MS = 1000.0


@dataclass(frozen=True)
class Stats:
    """Distribution of one latency, in milliseconds; zeros if there is no value."""

    mean: float
    median: float
    std: float
    percentiles: tuple[tuple[float, float], ...]  # (percentile, value)


@dataclass(frozen=True)
class Metrics:
    """Of the successful requests, save `failed`. Throughputs per second of the whole run."""

    completed: int  # requests that succeeded
    failed: int
    total_input: int  # tokens
    total_output: int  # tokens
    request_throughput: float  # requests
    request_goodput: float | None  # requests that met all objectives, None without any
    output_throughput: float  # tokens
    peak_output_throughput: float  # chunks within one second counted from the first request
    peak_concurrency: int  # requests in flight at one moment
    total_throughput: float  # tokens in and out
    latencies: Mapping[str, Stats]  # by metric name: ttft, tpot, itl, e2el


@dataclass(frozen=True)
class Accuracy:
    """Right answers, in any words, by kind of question; a failed request is a wrong answer."""

    right: Counter[str]
    asked: Counter[str]

    @property
    def share(self) -> float:
        """Right answers out of all."""
        return self.right.total() / self.asked.total()


def summarize(
    outcomes: Sequence[Outcome],
    duration: float,
    percentiles: Sequence[float] = (99.0,),
    goodput: Mapping[str, float] | None = None,
) -> Metrics:
    """All numbers of a run of `duration` seconds; `goodput` has limits in milliseconds."""
    good = [outcome for outcome in outcomes if outcome.success]
    total_input = sum(outcome.prompt_len for outcome in good)
    total_output = sum(outcome.output_len for outcome in good)
    values = {
        "ttft": [outcome.ttft for outcome in good],
        "tpot": [outcome.tpot for outcome in good if outcome.output_len > 1],
        "itl": [itl for outcome in good for itl in outcome.itls],
        "e2el": [outcome.latency for outcome in good],
    }
    return Metrics(
        completed=len(good),
        failed=len(outcomes) - len(good),
        total_input=total_input,
        total_output=total_output,
        request_throughput=len(good) / duration,
        request_goodput=_within(good, goodput) / duration if goodput else None,
        output_throughput=total_output / duration,
        peak_output_throughput=_peak_output(good),
        peak_concurrency=_peak_concurrency(good),
        total_throughput=(total_input + total_output) / duration,
        latencies={name: _stats(seconds, percentiles) for name, seconds in values.items()},
    )


def accuracy(requests: Sequence[Prepared], outcomes: Sequence[Outcome]) -> Accuracy | None:
    """How many answers are right, if the requests have right answers."""
    right: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    for request, outcome in zip(requests, outcomes, strict=True):
        if request.answer is not None:
            asked[request.kind] += 1
            right[request.kind] += outcome.success and agrees(
                request.kind, outcome.text, request.answer
            )
    return Accuracy(right, asked) if asked else None


def failures(outcomes: Sequence[Outcome]) -> list[tuple[str, int]]:
    """Reasons of failures with their numbers, most frequent first."""
    return Counter(outcome.error for outcome in outcomes if not outcome.success).most_common()


def _stats(seconds: Sequence[float], percentiles: Sequence[float]) -> Stats:
    values = np.asarray(seconds or [0.0]) * MS
    return Stats(
        mean=float(values.mean()),
        median=float(np.median(values)),
        std=float(values.std()),
        percentiles=tuple((p, float(np.percentile(values, p))) for p in percentiles),
    )


def _within(outcomes: Sequence[Outcome], limits: Mapping[str, float]) -> int:
    """Requests that keep every limit."""
    measured = (
        {"ttft": outcome.ttft, "tpot": outcome.tpot, "e2el": outcome.latency}
        for outcome in outcomes
    )
    return sum(all(m[name] * MS <= limit for name, limit in limits.items()) for m in measured)


def _peak_output(outcomes: Sequence[Outcome]) -> float:
    if not outcomes:
        return 0.0
    first = min(outcome.start for outcome in outcomes)
    moments = [np.cumsum([o.start - first + o.ttft, *o.itls]) for o in outcomes]
    return float(np.bincount(np.concatenate(moments).astype(int)).max())


def _peak_concurrency(outcomes: Sequence[Outcome]) -> int:
    """Most requests in flight at one moment; one that ends when another starts is gone."""
    steps = [(outcome.start, 1) for outcome in outcomes]
    steps += [(outcome.start + outcome.latency, -1) for outcome in outcomes]
    changes = [change for _, change in sorted(steps)]
    return int(np.cumsum(changes).max()) if changes else 0
