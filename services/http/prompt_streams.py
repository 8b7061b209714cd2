"""One stream of the answers to several prompts, a few of which are computed at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence

from protocol.errors import TriptychError
from services.frontend.answers.answering import Answering, Steps, failed
from services.frontend.answers.whole import total_usage
from services.http.tasks import ended

Begin = Callable[[], Steps]


async def prompt_events(
    answers: Sequence[tuple[Answering, Begin]], at_once: int
) -> AsyncGenerator[bytes, None]:
    """Server-sent events of all `answers` as they come, then one usage and the end mark. `Begin`
    begins to compute one. An error before the first event is raised; a later one is the last
    event, and ends all."""
    begun = False
    try:
        async with contextlib.aclosing(_interleaved(answers, at_once)) as merged:
            async for data in merged:
                begun = True
                yield data
    except TriptychError as error:
        if not begun:
            raise
        yield failed(error)
        return
    yield answers[0][0].end(total_usage([answering.usage() for answering, _ in answers]))


async def _interleaved(
    answers: Sequence[tuple[Answering, Begin]], at_once: int
) -> AsyncGenerator[bytes, None]:
    # Bounded: a client that reads slowly slows the computation, not our memory.
    queue: asyncio.Queue[bytes | None] = asyncio.Queue(at_once)
    room = asyncio.Semaphore(at_once)

    async def feed(answering: Answering, begin: Begin) -> None:
        # `begin` is called once there is room: what is left of the deadline counts from then.
        async with room, contextlib.aclosing(begin()) as steps:
            first = await anext(steps)
            async with contextlib.aclosing(answering.chunks(first, steps)) as chunks:
                async for data in chunks:
                    await queue.put(data)

    async def feed_all() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for answering, begin in answers:
                    group.create_task(feed(answering, begin))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            # Once the stream is closed its queue has no reader; `put` would wait for ever.
            if not closed:
                await queue.put(None)

    closed = False
    task = asyncio.create_task(feed_all())
    try:
        while (data := await queue.get()) is not None:
            yield data
        # The mark comes after a failure too, which is raised here.
        await task
    finally:
        closed = True
        await ended(task)
