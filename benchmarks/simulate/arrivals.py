"""An open loop of sessions: new ones come at their rate, however slow the fleet is. Within one, a
turn arrives only after the answer that it quotes has ended (Schroeder et al., NSDI 2006, call this
partly open)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from benchmarks.simulate.prompts import Session, TraceRequest


class Timetable(Protocol):
    """`benchmarks.simulate.clock.Clock`, or one of real time."""

    @property
    def now(self) -> float: ...

    def at(self, time: float, call: Callable[..., object], *args: Any) -> None: ...

    def after(self, seconds: float, call: Callable[..., object], *args: Any) -> None: ...


class Arrivals:
    """Sessions begin `pace` times as fast as they say; how long users think is left as it is."""

    def __init__(
        self,
        clock: Timetable,
        sessions: Iterable[Session],
        pace: float,
        arrive: Callable[[TraceRequest], None],
    ) -> None:
        self._clock = clock
        self._sessions = iter(sessions)
        self._pace = pace
        self._arrive = arrive
        self._next_turns: dict[str, Iterator[TraceRequest]] = {}

    def begin(self) -> None:
        """Make the next session start in time. One at a time, as there is no end to them."""
        session = next(self._sessions, None)
        if session is not None:
            start = max(self._clock.now, session.start / self._pace)
            self._clock.at(start, self._start, session)

    def _start(self, session: Session) -> None:
        turns = iter(session.turns)
        self._turn(next(turns), turns)
        self.begin()

    def _turn(self, request: TraceRequest, turns: Iterator[TraceRequest]) -> None:
        self._next_turns[request.name] = turns
        self._arrive(request)

    def ended(self, name: str) -> None:
        """A request was answered or refused: the user thinks, and asks again. Dropping
        the rest of a refused session would make a fleet that refuses look less loaded."""
        turns = self._next_turns.pop(name)
        following = next(turns, None)
        if following is not None:
            self._clock.after(following.think_s, self._turn, following, turns)


class Replay:
    """Sessions that are made once and may be gone through again: every policy sees the same."""

    def __init__(self, sessions: Iterator[Session]) -> None:
        self._source = sessions
        self._made: list[Session] = []

    def __iter__(self) -> Iterator[Session]:
        place = 0
        while True:
            if place == len(self._made):
                following = next(self._source, None)
                if following is None:
                    return
                self._made.append(following)
            yield self._made[place]
            place += 1
