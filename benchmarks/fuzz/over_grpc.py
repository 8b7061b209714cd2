"""Mutated messages over gRPC: each is a valid one with fields or bytes changed, drawn from the seed
and its own number, and none is answered by INTERNAL or UNKNOWN."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from benchmarks.common.pictures import sample
from benchmarks.fuzz.chat_samples import TOKENS
from benchmarks.fuzz.client import Findings
from benchmarks.fuzz.values import damaged
from benchmarks.soak.stack import MODEL
from services.grpc.proto import kserve_pb2, rtp_pb2

_AT_ONCE = 16
_PATIENCE_S = 3.0
_LONGEST_S = 25.0
_CUT_SHORT = "Internal error from Core"
"""How grpcio's client calls it that it wrote on when the server had answered: no server says so."""
_BAD = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
_INFER, _STREAM, _GENERATE = "ModelInfer", "ModelStreamInfer", "GenerateStreamCall"
KSERVE, RTP = "inference.GRPCInferenceService", "RpcService"
_TEXTS = ("", "\0", "x" * 5000, "🙂", "{", "[1]", "nan", "file:///etc/passwd", "http://[", MODEL)
_NUMBERS = (0, 1, -1, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 2**32, 129, 0.5, -0.0, 1e308,
            float("nan"), float("inf"))  # fmt: skip


@dataclass(frozen=True)
class Door:
    """Where a process listens for gRPC. `service`: the name of its protocol's service."""

    name: str
    address: str
    service: str
    metadata: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Call:
    """`data`: the bytes of each message that the call sends."""

    number: int
    door: Door
    method: str
    data: tuple[bytes, ...]
    told: str


def _infer(*texts: str, streaming: bool = False, image: str = "", **fields: Any) -> Message:
    made = kserve_pb2.InferRequest(model_name=MODEL, id="fuzz")
    made.parameters["max_tokens"].int64_param = TOKENS
    given = made.inputs.add(name="text_input", datatype="BYTES", shape=[len(texts)])
    given.contents.bytes_contents.extend(text.encode() for text in texts)
    if streaming:
        made.inputs.add(name="streaming", datatype="BOOL", shape=[1]).contents.bool_contents.append(
            True
        )
    more = {"image": image, "sampling_parameters": json.dumps(fields) if fields else ""}
    for name, value in more.items():
        if value:
            given = made.inputs.add(name=name, datatype="BYTES", shape=[1])
            given.contents.bytes_contents.append(value.encode())
    return made


def _raw() -> Message:
    made = kserve_pb2.InferRequest(model_name=MODEL)
    made.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    made.raw_input_contents.append(b"\x02\0\0\0Hi")
    made.parameters["triton_enable_empty_final_response"].bool_param = True
    made.outputs.add(name="text_output")
    return made


def _generate(**config: Any) -> Message:
    made = rtp_pb2.GenerateInput(request_id=7, token_ids=[1, 2, 3])
    made.generate_config.max_new_tokens = TOKENS
    made.generate_config.is_streaming = True
    for name, value in config.items():
        setattr(made.generate_config, name, value)
    return made


def _seen() -> str:
    content: Any = sample("describe", 3).openai_messages()[0]["content"]
    return next(str(part["image_url"]["url"]) for part in content if "image_url" in part)


def _samples() -> dict[str, Sequence[Message]]:
    pictured = _generate()
    pictured.multimodal_inputs.add(multimodal_url="http://127.0.0.1:9/a.png")
    infers = (
        _infer("Hello"), _infer("a", "b", temperature=0.5), _raw(), _infer("Look", image=_seen()),
        _infer("x", top_k=3, stop=["a"], seed=1),
    )  # fmt: skip
    name = kserve_pb2.ModelName(name=MODEL)
    return {
        _INFER: infers,
        _STREAM: (*infers, _infer("Hello", streaming=True)),
        _GENERATE: (_generate(), _generate(top_k=3, top_p=0.5, num_return_sequences=2), pictured),
        "ModelReady": (name,), "ModelMetadata": (name,), "ModelConfig": (name,),
        "ServerLive": (name,), "CheckHealth": (name,), "Nowhere": (name,),
    }  # fmt: skip


_SAMPLES: Mapping[str, Sequence[Message]] = MappingProxyType(_samples())
_METHODS = MappingProxyType({
    KSERVE: (_INFER, _INFER, _INFER, _STREAM, _STREAM, "ModelReady", "ModelMetadata",
              "ModelConfig", "ServerLive", "Nowhere"),
    RTP: (_GENERATE, _GENERATE, _GENERATE, _GENERATE, "CheckHealth", "Nowhere"),
})  # fmt: skip


def call(seed: int, number: int, doors: Sequence[Door]) -> Call:
    """The same for the same arguments."""
    chance = random.Random(f"grpc:{seed}:{number}")
    door = chance.choice(doors)
    method = chance.choice(_METHODS[door.service])
    data, told = [], [f"{door.name} {method}"]
    for _ in range(chance.choice((1, 1, 1, 2, 3)) if method == _STREAM else 1):
        at = chance.randrange(len(_SAMPLES[method]))
        message = type(_SAMPLES[method][at])()
        message.CopyFrom(_SAMPLES[method][at])
        changes = [_changed(message, chance) for _ in range(chance.choice((0, 1, 1, 2, 3)))]
        body = message.SerializeToString(deterministic=True)
        if chance.random() < 0.2:
            body = damaged(body, chance)
            changes.append("damaged")
        data.append(body)
        told.append(f"sample {at}: {', '.join(changes) or 'as it is'}")
    if chance.random() < 0.03:
        data.clear()
        told.append("not sent")
    return Call(number, door, method, tuple(data), "; ".join(told))


def _changed(message: Any, chance: random.Random) -> str:
    """Set, clear or repeat one field somewhere in it; says which."""
    field = chance.choice(message.DESCRIPTOR.fields)
    if chance.random() < 0.15:
        message.ClearField(field.name)
        return f"no {field.name}"
    held = getattr(message, field.name)
    if _is_map(field):
        key = chance.choice([*held, "max_tokens", "n", "top_p", "timeout", ""])
        return f"{field.name}[{key!r}] {_changed(held[key], chance)}"
    if field.message_type is not None:
        inner = held if not field.is_repeated else chance.choice([*held, None]) or held.add()
        return f"{field.name}.{_changed(inner, chance)}"
    value = _value(field, chance)
    try:
        if field.is_repeated:
            held.extend([value] * chance.choice((1, 1, 2, 700)))
        else:
            setattr(message, field.name, value)
    except (TypeError, ValueError, OverflowError):
        return f"{field.name} as it is"
    return f"{field.name} {str(value)[:20]!r}"


def _is_map(field: FieldDescriptor) -> bool:
    entry = field.message_type
    return entry is not None and entry.GetOptions().map_entry


def _value(field: FieldDescriptor, chance: random.Random) -> Any:
    if field.type in (field.TYPE_STRING, field.TYPE_BYTES):
        text = chance.choice(_TEXTS)
        return text if field.type == field.TYPE_STRING else text.encode()
    number = chance.choice(_NUMBERS)
    if field.type == field.TYPE_BOOL:
        return bool(number)
    is_real = field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE)
    return number if is_real or isinstance(number, int) else 3


async def attack(calls: Iterable[Call]) -> Findings:
    """All of them, a few at once."""
    found, waiting = Findings(), iter(calls)
    channels: dict[str, grpc.aio.Channel] = {}

    async def work() -> None:
        for one in waiting:
            if one.door.address not in channels:
                channels[one.door.address] = grpc.aio.insecure_channel(one.door.address)
            code, said = await _answer(channels[one.door.address], one)
            found.sent += 1
            found.statuses[code.name] += 1
            if code in _BAD:
                found.defects.append(f"call {one.number}, {one.told}: {code.name} {said[:300]}")

    try:
        await asyncio.gather(*(work() for _ in range(_AT_ONCE)))
    finally:
        for channel in channels.values():
            await channel.close()
    return found


async def _answer(channel: grpc.aio.Channel, one: Call) -> tuple[grpc.StatusCode, str]:
    """The status code, UNKNOWN for an answer that has no end."""
    method = channel.stream_stream(f"/{one.door.service}/{one.method}")
    try:
        async with asyncio.timeout(_LONGEST_S):
            asked = method(iter(one.data), metadata=one.door.metadata, timeout=_PATIENCE_S)
            async for _ in asked:
                pass
        return grpc.StatusCode.OK, ""
    except grpc.aio.AioRpcError as error:
        if error.details() == _CUT_SHORT:
            return grpc.StatusCode.CANCELLED, ""
        return error.code(), error.details() or ""
    except TimeoutError:
        return grpc.StatusCode.UNKNOWN, "no end"
