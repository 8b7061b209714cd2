"""The thread that publishes cache events, at its end."""

import threading
import time
from collections.abc import Sequence

from protocol.kv_events import AllBlocksCleared, BlockRemoved, CacheEvent
from services.engine.publishing import EventThread
from services.membership.config import parse_events

WAIT_S = 20.0


def test_what_is_handed_over_while_questions_are_answered_is_published() -> None:
    """Also if the thread is to end right after."""
    config = parse_events("", "127.0.0.1", default=True)
    assert config is not None
    thread = EventThread(config.blocks(), None)
    answering, go_on = threading.Event(), threading.Event()
    said: list[CacheEvent] = []

    def slow() -> None:
        answering.set()
        assert go_on.wait(WAIT_S)

    def publish(kv: Sequence[CacheEvent], ec: Sequence[CacheEvent]) -> None:
        said.extend(kv)

    thread._publisher.answer = slow  # type: ignore[method-assign]
    thread._publisher.publish = publish  # type: ignore[method-assign]
    thread.hand(([BlockRemoved([1])], []))
    assert answering.wait(WAIT_S)
    thread.hand(([AllBlocksCleared()], []))
    closing = threading.Thread(target=thread.close)
    closing.start()
    deadline = time.monotonic() + WAIT_S
    while not thread._stopping:
        assert time.monotonic() < deadline
    go_on.set()
    closing.join(WAIT_S)
    assert said == [BlockRemoved([1]), AllBlocksCleared()]
