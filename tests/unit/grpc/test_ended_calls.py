"""A call that has ended before it could be refused: its end is no failure of the server's."""

import asyncio
from typing import Any

import grpc
import pytest

from protocol.errors import DeadlineExceeded, InvalidRequest
from services.grpc.server import refuse, unary


class Context:
    """`gone`: the client does not wait any more. What gRPC raises then cannot be had at will."""

    def __init__(self, gone: bool) -> None:
        self.gone = gone
        self.told: list[Any] = []

    async def abort(self, *told: Any) -> None:
        self.told.append(told)
        raise grpc.aio.InternalError("execute_batch") if self.gone else grpc.aio.AbortError


async def test_a_client_that_is_gone_is_told_nothing() -> None:
    context = Context(gone=True)
    with pytest.raises(asyncio.CancelledError):
        await refuse(context, DeadlineExceeded("late"))
    assert len(context.told) == 1


async def test_a_client_that_waits_is_told() -> None:
    async def work(context: Context) -> None:
        raise InvalidRequest("no such field")

    context = Context(gone=False)
    with pytest.raises(grpc.aio.AbortError):
        await unary(work)(None, context)
    assert context.told == [(grpc.StatusCode.INVALID_ARGUMENT, "no such field", ())]
