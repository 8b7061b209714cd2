"""What a worker that drains still does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from protocol.errors import NotServing
from protocol.types import EncodeOutput, EncodeRequest


async def held_only(
    request: EncodeRequest, encode: Callable[[EncodeRequest], Awaitable[list[EncodeOutput]]]
) -> list[EncodeOutput]:
    """What a worker that drains answers to an encode call: the items that it has. `NotServing` if
    another one came with its data, which another worker must encode."""
    asked = [msgspec.structs.replace(item, data=None) for item in request.items]
    outputs = await encode(msgspec.structs.replace(request, items=asked))
    brought = {item.mm_hash for item in request.items if item.data is not None}
    if any(output.missing and output.mm_hash in brought for output in outputs):
        raise NotServing(
            "this worker is draining or stopping and accepts no requests", retry_after_s=1.0
        )
    return outputs
