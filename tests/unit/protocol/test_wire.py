"""What a message may say and what is meant by what it leaves out: another version of a process
reads it, so a change of either is a change of the protocol."""

import math
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from protocol import (
    bounds,
    encoder_cache,
    errors,
    event_frames,
    generate,
    generate_answers,
    kv_events,
    openai,
    openai_answers,
    placement,
    pooling,
    refs,
    registry,
    rtp_status,
    types,
)
from protocol.decoding import check_opaque, within_bounds
from protocol.errors import InvalidRequest

MODULES = (
    encoder_cache, event_frames, generate, generate_answers, kv_events, openai, openai_answers,
    placement, refs, registry, rtp_status, types,
)  # fmt: skip
INT32, INT64 = 2**31 - 1, 2**63 - 1
MOST = 2**40
ABOVE, BELOW = math.nextafter(0.0, 1.0), math.nextafter

NUMBERS: dict[str, tuple[Any, tuple[float, float], tuple[float, float]]] = {
    # type, least and most that are taken, what is just outside
    "Int64": (bounds.Int64, (-(2**63), INT64), (-(2**63) - 1, 2**63)),
    "Natural": (bounds.Natural, (0, INT32), (-1, 2**31)),
    "Positive": (bounds.Positive, (1, INT32), (0, 2**31)),
    "Port": (bounds.Port, (0, 65535), (-1, 65536)),
    "Seconds": (bounds.Seconds, (0.0, 1e300), (-ABOVE, -1.0)),
    "Rate": (bounds.Rate, (ABOVE, 1000.0), (0.0, BELOW(1000.0, 2000.0))),
    "Choices": (bounds.Choices, (1, 128), (0, 129)),
    "Alternatives": (bounds.Alternatives, (0, 20), (-1, 21)),
    "Truncation": (bounds.Truncation, (-1, INT32), (-2, 2**31)),
    "TopK": (bounds.TopK, (-1, INT32), (-2, 2**31)),
    "Temperature": (bounds.Temperature, (0.0, 1e9), (-ABOVE, BELOW(1e9, 2e9))),
    "TopP": (bounds.TopP, (ABOVE, 1.0), (0.0, BELOW(1.0, 2.0))),
    "MinP": (bounds.MinP, (0.0, 1.0), (-ABOVE, BELOW(1.0, 2.0))),
    "Penalty": (bounds.Penalty, (-2.0, 2.0), (BELOW(-2.0, -3.0), BELOW(2.0, 3.0))),
    "RepetitionPenalty": (bounds.RepetitionPenalty, (ABOVE, 1e9), (0.0, BELOW(1e9, 2e9))),
    "Bias": (bounds.Bias, (-100.0, 100.0), (BELOW(-100.0, -101.0), BELOW(100.0, 101.0))),
    "BlockKey": (placement.BlockKey, (0, 2**64 - 1), (-1, -2)),
    "Count": (registry.Count, (0, MOST), (-1, MOST + 1)),
    "Amount": (registry.Amount, (0.0, 1e15), (-ABOVE, BELOW(1e15, 2e15))),
}
LIMITED: dict[str, tuple[float | None, float | None]] = {
    # fields whose numbers or lengths have bounds of their own
    "InstanceInfo.block_size": (1, 65536),
    "InstanceInfo.grpc_port": (0, 65535),
    "InstanceInfo.events": (None, 64),
    "InstanceInfo.aliases": (None, 256),
    "InstanceInfo.adapters": (None, 4096),
    "InstanceInfo.instance_id": (1, 256),
    "InstanceInfo.url": (None, 2048),
    "ScheduleRequest.prompt_tokens": (1, MOST),
    "ScheduleRequest.block_keys": (None, 2**20),
    "ScheduleRequest.block_size": (1, 65536),
    "ScheduleRequest.items": (None, 4096),
    "ScheduleRequest.max_tokens": (0, MOST),
    "ScheduleRequest.priority": (0, 100),
    "ScheduleRequest.deadline_s": (None, 1e9),
    "ScheduleRequest.avoid": (None, 1024),
    "ScheduleRequest.ttft_slo_s": (0, 1e9),
    "ScheduleRequest.tpot_slo_s": (0, 1e9),
    "Finished.elapsed_s": (0, 1e9),
    "Finished.first_s": (0, 1e9),
    "Finished.failed": (None, 1024),
    "Finished.mm_hashes": (None, 4096),
    "FinishedReports.reports": (None, 65536),
    "StatusQuery.latest_cache_version": (-1, INT64),
    "StatusQuery.latest_finished_version": (-1, INT64),
    "KVRef.rope_delta": (-INT32, INT32),
    "KVRef.host": (None, 253),
    "KVRef.port": (0, 65535),
    "KVRef.request_id": (None, 1024),
    "KVRef.tp_size": (1, INT32),
    "SamplingParams.logprob_token_ids": (None, 128),
}
SAID: dict[str, Any] = {
    # what is meant by a field that is left out, where that is not 0, false, empty or nothing
    "CacheStatus.available_kv_cache": -1,
    "CacheStatus.block_size": -1,
    "CacheStatus.total_kv_cache": -1,
    "CacheStatus.version": -1,
    "ChatCompletionRequest.add_generation_prompt": True,
    "ChatCompletionRequest.include_reasoning": True,
    "Drain.draining": True,
    "FrameSampling.fps": 2.0,
    "FrameSampling.max_frames": 768,
    "FrameSampling.min_frames": 4,
    "InstanceInfo.block_size": 16,
    "KVLayout.tp_size": 1,
    "KVRef.tp_size": 1,
    "LeaseAnswer.known": True,
    "SamplingParams.length_penalty": 1.0,
    "SamplingParams.max_tokens": 16,
    "SamplingParams.n": 1,
    "SamplingParams.repetition_penalty": 1.0,
    "SamplingParams.skip_special_tokens": True,
    "SamplingParams.temperature": 1.0,
    "SamplingParams.top_p": 1.0,
    "ChatCompletionRequest.skip_special_tokens": True,
    "CompletionRequest.skip_special_tokens": True,
    "SharedFields.skip_special_tokens": True,
    "ScheduleRequest.block_size": 16,
    "StatusQuery.latest_cache_version": -1,
    "StatusQuery.latest_finished_version": -1,
    "TaskInfo.end_time_ms": -1,
    "WorkerView.usable": True,
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_is_taken_up_to_its_bounds_and_not_beyond(name: str) -> None:
    kind, taken, refused = NUMBERS[name]
    for number in taken:
        assert msgspec.convert(number, kind) == number
    for number in refused:
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(number, kind)


def fields() -> Iterator[tuple[str, inspect.Field]]:
    for module in MODULES:
        for kind in vars(module).values():
            own = getattr(kind, "__module__", "") == module.__name__
            if own and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
                info = inspect.type_info(kind)
                assert isinstance(info, inspect.StructType)
                yield from ((f"{kind.__name__}.{field.name}", field) for field in info.fields)


def limits(kind: inspect.Type) -> tuple[float | None, float | None]:
    if isinstance(kind, inspect.UnionType):
        found = [limits(part) for part in kind.types]
        return next((one for one in found if one != (None, None)), (None, None))
    least = [getattr(kind, name, None) for name in ("ge", "min_length")]
    most = [getattr(kind, name, None) for name in ("le", "max_length")]
    return next((n for n in least if n is not None), None), next(
        (n for n in most if n is not None), None
    )


def test_fields_with_bounds_of_their_own_keep_them() -> None:
    found = {name: limits(field.type) for name, field in fields()}
    assert {name: found[name] for name in LIMITED} == LIMITED


def test_what_is_left_out_means_nothing_or_what_is_said_here() -> None:
    found = {}
    for name, field in fields():
        default = field.default
        if isinstance(default, bool | int | float) and default:
            found[name] = default
    assert found == SAID


def test_what_processes_tell_each_other_leaves_out_what_is_as_it_mostly_is() -> None:
    own = [
        kind
        for module in (errors, generate, placement, pooling, registry, types)
        for kind in vars(module).values()
        if isinstance(kind, type)
        and kind.__module__ == module.__name__
        and issubclass(kind, msgspec.Struct)
        and kind.__struct_defaults__
    ]
    whole = {kind.__name__ for kind in own if not kind.__struct_config__.omit_defaults}
    assert len(own) > 20 and whole == {"PositionLogprobs"}  # what it has is asked for
    assert b"param" not in msgspec.msgpack.encode(errors.ErrorInfo(400, "no", "invalid_value"))


def test_lists_that_are_too_long_name_the_field() -> None:
    wanted = placement.ScheduleRequest("r", 1, avoid=["x"] * 1025)
    with pytest.raises(InvalidRequest, match="avoid"):
        within_bounds(wanted)
    assert within_bounds(placement.ScheduleRequest("r", 1, avoid=["x"] * 1024)).avoid[-1] == "x"


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63), 0, True, 2.0**80])
def test_opaque_values_may_hold_what_fits(number: float) -> None:
    check_opaque({"a": [number, "x", None]}, "params")


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**30])
def test_opaque_values_hold_no_larger_integer_anywhere(number: int) -> None:
    for value in (number, [number], {"a": {"b": [0, number]}}, [0, {"a": number}]):
        with pytest.raises(InvalidRequest, match="params has an integer"):
            check_opaque(value, "params")


def nested(depth: int, *, as_list: bool) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value] if as_list else {"a": value}
    return value


@pytest.mark.parametrize("as_list", [False, True])
def test_opaque_values_are_nested_32_deep_at_most(as_list: bool) -> None:
    check_opaque(nested(32, as_list=as_list), "params")
    with pytest.raises(InvalidRequest, match="params is nested too deep"):
        check_opaque(nested(33, as_list=as_list), "params")
