"""Follows one event source: applies what comes in order, and has what is missing sent again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from protocol.errors import InvalidRequest
from protocol.event_frames import SNAPSHOT, parse_frames
from protocol.kv_events import EventBatch
from services.master.events.heard import (
    HeardCache,
    Message,
    Order,
    SequenceTracker,
    Sink,
    parse_message,
)

_MAX_HELD = 100_000  # messages, for a replay whose end never comes


class Follower:
    """Pure: frames come in through `live` and `replayed`, replay requests go out through `ask`,
    which makes answers to an earlier request void.

    A new source is first asked for a snapshot, then, if it has none, for all it still remembers.
    While answers are due live messages are held back. After a gap the last message applied is
    asked for once more: if it is another one now, the publisher has restarted unnoticed. A gap
    among what was held back is asked for like any other, as long as replays bring something. What
    a replay does not have is lost, and the source is read like a new one. `ask` None: the source
    cannot replay.

    When answers do not come the follower goes on with what it hears live; it is `incomplete` then,
    for what is hot may never be said again, until `ask_again` has brought the whole state. Whole is
    a snapshot, a replay that begins with the first message of all, and what follows after a cache
    was cleared. A replay that begins later was cut off by the publisher's bound: what it brings
    counts, and is not asked for twice, but a snapshot still is.
    """

    def __init__(self, sink: Sink, ask: Callable[[int], None] | None, counts: Counter[str]) -> None:
        self._cache = HeardCache(sink)
        self._ask = ask
        self._counts = counts
        self._tracker = SequenceTracker()
        self._asked: int | None = None
        self._asked_after = -1
        self._answers = 0
        self._again = False
        self._from_first = False
        self._last_ts: float | None = None
        self._held: list[Message] = []
        self._held_before = 0
        self._request(SNAPSHOT)

    @property
    def waiting(self) -> bool:
        """Whether a replay is under way; the caller ends one that takes too long by `give_up`."""
        return self._asked is not None

    @property
    def lacking(self) -> bool:
        """Whether the cache may hold more than was heard."""
        return self._cache.lacking

    @property
    def incomplete(self) -> bool:
        """Nothing is under way, and not all was heard: `ask_again`, but not at once."""
        return self._cache.lacking and not self.waiting and self._ask is not None

    @property
    def expecting(self) -> bool:
        """Whether nothing has come yet of what was asked for once more."""
        return self._again and not self._answers

    def ask_again(self) -> None:
        """For the whole state. Until it begins to come live messages count."""
        self._again = True
        self._request(SNAPSHOT)

    def distrust(self) -> None:
        """Something went wrong with what the source has said."""
        self._cache.distrust()

    def live(self, frames: Sequence[bytes]) -> None:
        """A published message."""
        message = self._parse(frames)
        if message is None:
            return
        if self.waiting and not self.expecting:
            self._hold(message)
            return
        self._next(*message)
        if self.expecting:  # what comes may be older
            self._hold(message)

    def _hold(self, message: Message) -> None:
        if len(self._held) < _MAX_HELD:
            self._held.append(message)
        else:
            self._counts["dropped"] += 1

    def replayed(self, frames: Sequence[bytes]) -> None:
        """An answer to a replay request."""
        if not self.waiting:
            return
        try:
            ended = parse_frames(frames) is None
        except InvalidRequest:
            self._counts["garbage"] += 1
            return
        if ended:
            self._end_of_replay()
            return
        message = self._parse(frames)
        if message is not None:
            self._answered(*message)

    def _answered(self, sequence: int, batch: EventBatch) -> None:
        self._answers += 1
        if self._again and self._answers == 1:
            self._cache.forget()
            self._tracker.restart()
        if self._answers == 1:
            self._from_first = sequence == 0 and self._tracker.last < 0
        if self._asked == SNAPSHOT:
            self._apply(sequence, batch)
            self._last_ts = None
        elif sequence == self._tracker.last:
            # A snapshot is no older than the last message in it.
            newer = batch.ts > self._tracker.ts if self._last_ts is None else False
            if newer or self._last_ts not in (None, batch.ts):
                self._counts[Order.RESTART.value] += 1
                self._start_anew()
        elif sequence > self._tracker.last:
            # Without the last message once more nothing tells a restarted publisher from this one.
            gap = sequence > self._tracker.last + 1 or self._answers == 1
            if gap and self._lost():
                self._start_anew()
                return
            self._apply(sequence, batch)

    def give_up(self) -> None:
        """The replay's answers do not come."""
        self._counts["replay_timeout"] += 1
        self._cache.lacking = True
        self._asked, self._again = None, False
        self._flush(again=False)

    def _parse(self, frames: Sequence[bytes]) -> Message | None:
        try:
            return parse_message(frames)
        except InvalidRequest:
            self._counts["garbage"] += 1
            return None

    def _request(self, start: int) -> bool:
        if self._ask is None:
            return False
        self._asked, self._answers, self._asked_after = start, 0, self._tracker.last
        self._from_first = False
        self._held_before = len(self._held)
        self._counts["replays"] += 1
        self._ask(start)
        return True

    def _end_of_replay(self) -> None:
        asked, answers = self._asked, self._answers
        if asked == SNAPSHOT and not answers and not self._cache.replayed_all:
            # A publisher that knows no snapshots, as vLLM's, answers with the end mark alone.
            self._request(0)
            return
        if asked in (SNAPSHOT, 0) and answers:
            # What was there before the question was is part of the answer.
            del self._held[: self._held_before]
        self._cache.replayed_all |= asked == 0
        silent = asked == 0 and not answers and not self._held and self._tracker.last < 0
        if silent or self._from_first or (asked == SNAPSHOT and answers):
            self._cache.lacking = False
        self._asked, self._again = None, False
        self._flush(again=True)

    def _flush(self, *, again: bool) -> None:
        """What came live in the meantime. What is missing there may be asked for `again`, but
        after a replay that brought nothing it is lost, and the source read from the beginning."""
        held = self._held
        for number, (sequence, batch) in enumerate(held):
            order = self._tracker.order(sequence, batch.ts)
            # Before it asks: `_request` notes how much was held when the question went out.
            self._held = held[number:] if order in (Order.GAP, Order.RESTART) else []
            if self._asks_for(order, again=again):
                return
            if order is not Order.DUPLICATE:
                self._apply(sequence, batch)
        self._held = []

    def _asks_for(self, order: Order, *, again: bool) -> bool:
        """Whether what comes before a held message, or a restarted publisher's state, is asked for
        first."""
        if order is Order.GAP and again and self._tracker.last > self._asked_after:
            self._counts[Order.GAP.value] += 1
            return self._request(self._tracker.last)
        if order is Order.GAP:
            return self._lost() and again and self._start_anew()
        if order is Order.RESTART:
            self._counts[Order.RESTART.value] += 1
            return self._start_anew()
        return False

    def _next(self, sequence: int, batch: EventBatch) -> None:
        order = self._tracker.order(sequence, batch.ts)
        if order is not Order.NEXT:
            self._counts[order.value] += 1
        if order is Order.DUPLICATE:
            return
        if order is not Order.NEXT:
            self._again = False
            restarted = order is Order.RESTART
            self._held = [(sequence, batch)]
            if self._tracker.last < 0:  # the first of all were missed
                restarted = True
            if self._start_anew() if restarted else self._request(self._tracker.last):
                return
            self._held = []
            self._lost()
        self._apply(sequence, batch)

    def _start_anew(self) -> bool:
        """The publisher is another one: nothing that was known is true."""
        self._cache.forget()
        self._tracker.restart()
        self._last_ts = None
        self._again = False
        return self._request(SNAPSHOT)

    def _apply(self, sequence: int, batch: EventBatch) -> None:
        self._tracker.advance(sequence, batch.ts)
        self._last_ts = batch.ts
        self._cache.apply(batch, in_snapshot=self._asked == SNAPSHOT)

    def _lost(self) -> bool:
        """Events are gone for good: what was known may be wrong, unless nothing was."""
        if self._tracker.last < 0:
            return False
        self._counts["lost"] += 1
        self._cache.forget()
        return True
