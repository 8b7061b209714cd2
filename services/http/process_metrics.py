"""What /metrics of every process says of itself: its version, memory, CPU time and open files."""

from __future__ import annotations

import importlib.metadata
import platform

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector


def describe_process(registry: CollectorRegistry) -> None:
    """`process_*` as Prometheus' libraries name them (from /proc: Linux), and
    `triptych_build_info`."""
    ProcessCollector(registry=registry)
    build = Gauge(
        "triptych_build_info",
        "Always 1; the labels are the versions of Triptych and of Python.",
        ["version", "python"],
        registry=registry,
    )
    build.labels(importlib.metadata.version("triptych"), platform.python_version()).set(1)
