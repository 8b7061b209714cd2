"""Requests and workers as the page shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protocol.request_record import RequestRecord
from proxy.fleet.worker import Instance
from proxy.page.figures import Figures

_LONGEST = 128  # characters that a client chooses


def stages_view(record: RequestRecord, now: float) -> dict[str, Any]:
    """What who asked may know of a request: no worker's name. Milliseconds count from the moment
    the request came; `end` is None while a stage lasts."""
    start, until = record.start, record.ended_at or now
    view: dict[str, Any] = {
        "running": not record.ended_at,
        "outcome": record.result() if record.ended_at else "",
        "ms": _ms(until - start),
        "ttft_ms": _ms(record.first_at - start) if record.first_at else None,
        "media": record.media,
        "retries": record.retries,
        "prompt_tokens": _known(record.prompt_tokens),
        "cached_tokens": _known(record.cached_tokens),
        "completion_tokens": _known(record.completion_tokens),
        "embedded": record.embedded,
        "items": [
            {"offset": item.offset, "length": item.length, "modality": item.modality}
            for item in record.items
        ],
        "calls": [
            {
                "stage": call.stage,
                "start": _ms(call.start - start),
                "end": _ms(call.end - start) if call.end else _ended(record, until),
            }
            for call in record.calls
        ],
    }
    return view


def request_view(record: RequestRecord, now: float, urls: Mapping[str, str]) -> dict[str, Any]:
    """What operators see of a request beyond that. `urls`: of workers, by the master's names."""
    view = stages_view(record, now)
    for shown, call in zip(view["calls"], record.calls, strict=True):
        shown["worker"] = call.worker
    return {
        **view,
        "id": record.request_id[:_LONGEST],
        "path": record.path,
        "model": record.model[:_LONGEST],
        "status": record.status,
        "stream": record.streamed,
        "ago_ms": _ms(now - record.start),
        "encoders": record.workers("encode"),
        "reasons": [_with_urls(reasons, urls) for reasons in record.reasons],
    }


def worker_view(worker: Instance, figures: Figures) -> dict[str, Any]:
    """A worker as this proxy knows it, and what it says of its own load."""
    return {
        "role": worker.role,
        "url": worker.url,
        "model": worker.model,
        "dialect": worker.dialect,
        "state": _state(worker),
        "cause": "" if worker.up else worker.cause,
        "in_flight": worker.in_flight,
        "max_running": worker.max_running,
        "figures": figures,
    }


def _state(worker: Instance) -> str:
    if not worker.up:
        return "down"
    if worker.draining:
        return "draining"
    if not worker.breaker.closed:
        return "failing"
    return "suspect" if worker.suspect else "up"


def _with_urls(reasons: Mapping[str, Any], urls: Mapping[str, str]) -> list[dict[str, Any]]:
    """The master's reasons, stage by stage, with URLs in place of its names."""
    return [
        {
            "stage": stage,
            "chosen": urls.get(found["chosen"], found["chosen"]),
            "able": found["able"],
            "workers": [
                {"worker": urls.get(name, name), **numbers}
                for name, numbers in found["workers"].items()
            ],
        }
        for stage, found in reasons.items()
    ]


def _ended(record: RequestRecord, until: float) -> float | None:
    """Milliseconds; a call without an end of its own ends with its request."""
    return _ms(until - record.start) if record.ended_at else None


def _known(count: int) -> int | None:
    return count if count >= 0 else None


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 2)
