"""KServe's tensors of texts and flags, read and written."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

from protocol.errors import InvalidRequest
from services.grpc.proto import kserve_pb2 as pb

_LENGTH = struct.Struct("<I")


def texts(request: pb.InferRequest, index: int) -> list[str]:
    """The elements of a BYTES tensor; `InvalidRequest` names it."""
    tensor = request.inputs[index]
    _check_type(tensor, "BYTES")
    if request.raw_input_contents:
        found = _unpacked(_raw(request, index), tensor.name)
    else:
        found = list(tensor.contents.bytes_contents)
    _check_count(tensor, len(found))
    try:
        return [element.decode() for element in found]
    except UnicodeDecodeError:
        raise InvalidRequest(f"{tensor.name} must hold texts in UTF-8", param=tensor.name) from None


def flag(request: pb.InferRequest, index: int) -> bool:
    """The element of a BOOL tensor."""
    tensor = request.inputs[index]
    _check_type(tensor, "BOOL")
    if request.raw_input_contents:
        found = [bool(byte) for byte in _raw(request, index)]
    else:
        found = list(tensor.contents.bool_contents)
    if len(found) != 1:
        raise InvalidRequest(f"{tensor.name} must have one element", param=tensor.name)
    return found[0]


def packed(values: Iterable[str]) -> bytes:
    """Elements of a BYTES tensor as raw contents."""
    encoded = [value.encode() for value in values]
    return b"".join(_LENGTH.pack(len(value)) + value for value in encoded)


def parameter(value: pb.Parameter) -> Any:
    """What a parameter holds, None if nothing."""
    name = value.WhichOneof("value")
    return None if name is None else getattr(value, name)


def _raw(request: pb.InferRequest, index: int) -> bytes:
    if index >= len(request.raw_input_contents):
        raise InvalidRequest(
            "raw_input_contents must hold one entry for each input", param="raw_input_contents"
        )
    data: bytes = request.raw_input_contents[index]
    return data


def _unpacked(data: bytes, name: str) -> list[bytes]:
    found, place = list[bytes](), 0
    while place < len(data):
        start = place + _LENGTH.size
        # -1 if the length itself is cut off: no end lies before its start.
        end = start + _LENGTH.unpack_from(data, place)[0] if start <= len(data) else -1
        if not start <= end <= len(data):
            raise InvalidRequest(
                f"{name}: raw contents must be elements, each after its length in four bytes",
                param=name,
            )
        found.append(data[start:end])
        place = end
    return found


def _check_type(tensor: pb.Tensor, wanted: str) -> None:
    if tensor.datatype != wanted:
        raise InvalidRequest(
            f"{tensor.name} must have the datatype {wanted}, not '{tensor.datatype[:32]}'",
            param=tensor.name,
        )


def _check_count(tensor: pb.Tensor, count: int) -> None:
    size = 1
    for dimension in tensor.shape:
        size *= dimension
    if size != count:
        raise InvalidRequest(
            f"{tensor.name} has {count} elements, its shape says {size}", param=tensor.name
        )
