"""Figures of requests by model."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from protocol.request_record import RequestRecord
from proxy.model_figures import OTHER, ModelFigures

PREFIX = "x:"


class Counted:
    """A registry with what has been counted there."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.figures = ModelFigures(PREFIX, self.registry)

    def sample(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(PREFIX + name, labels)


def record(model: str = "m", **values: Any) -> RequestRecord:
    """Of a stream that began 2 s after its arrival at 100 s and ended 6 s later."""
    found = RequestRecord("/v1/chat/completions", "r")
    found.model, found.start, found.first_at, found.ended_at = model, 100.0, 102.0, 108.0
    found.status, found.streamed = 200, True
    found.prompt_tokens, found.completion_tokens = 700, 4
    for name, value in values.items():
        setattr(found, name, value)
    return found


def call(found: RequestRecord, stage: str, start: float, end: float) -> None:
    found.begin(stage, start, "http://w").end = end


def test_a_stream_is_counted_by_its_model() -> None:
    counted, found = Counted(), record()
    call(found, "queue", 100.0, 100.5)
    call(found, "prefill", 100.5, 102.0)
    call(found, "decode", 102.0, 108.0)

    counted.figures.note([found])

    assert counted.sample("model_time_to_first_token_seconds_sum", model="m") == 2.0
    assert counted.sample("model_time_per_output_token_seconds_sum", model="m") == 2.0
    assert counted.sample("model_request_latency_seconds_sum", model="m") == 8.0
    assert counted.sample("model_prompt_tokens_sum", model="m") == 700
    assert counted.sample("model_completion_tokens_sum", model="m") == 4
    for stage, seconds in (("queue", 0.5), ("prefill", 1.5), ("decode", 6.0)):
        assert counted.sample("model_stage_seconds_sum", model="m", stage=stage) == seconds
        assert counted.sample("model_stage_seconds_count", model="m", stage=stage) == 1


def test_calls_of_one_stage_that_overlap_are_one_stretch_of_time() -> None:
    counted, found = Counted(), record()
    call(found, "encode", 100.0, 101.0)
    call(found, "encode", 100.0, 101.5)

    counted.figures.note([found])

    encode = {"model": "m", "stage": "encode"}
    assert counted.sample("model_stage_seconds_count", **encode) == 1
    assert counted.sample("model_stage_seconds_sum", **encode) == pytest.approx(1.5)


def test_an_answer_in_one_piece_has_no_time_to_its_first_token() -> None:
    counted = Counted()
    counted.figures.note([record(streamed=False)])
    assert counted.sample("model_time_to_first_token_seconds_count", model="m") == 0
    assert counted.sample("model_request_latency_seconds_count", model="m") == 1


def test_counts_that_are_not_known_are_left_out() -> None:
    counted = Counted()
    counted.figures.note([record(prompt_tokens=-1, completion_tokens=-1)])
    assert counted.sample("model_prompt_tokens_count", model="m") == 0
    assert counted.sample("model_completion_tokens_count", model="m") == 0
    assert counted.sample("model_time_per_output_token_seconds_count", model="m") == 0


@pytest.mark.parametrize("values", [{"status": 404}, {"status": 0}, {"outcome": "aborted"}])
def test_what_did_not_succeed_is_not_counted(values: dict[str, Any]) -> None:
    counted = Counted()
    counted.figures.note([record(**values)])
    assert counted.sample("model_request_latency_seconds_count", model="m") is None


def test_names_that_clients_make_up_take_no_more_room_than_64() -> None:
    counted = Counted()
    for number in range(100):
        counted.figures.note([record(f"m{number}")])
    counted.figures.note([record("m3")])
    assert counted.sample("model_request_latency_seconds_count", model="m3") == 2
    assert counted.sample("model_request_latency_seconds_count", model="m64") is None
    assert counted.sample("model_request_latency_seconds_count", model=OTHER) == 36
