"""Connections take turns, so that a crowd that comes at once delays no other.

To begin a request (to parse and render it) costs the event loop up to a millisecond. Where a
thousand arrive together, one that comes after them would wait for all of these, and so would the
tokens of every stream under way. Here a turn of the loop begins few, in turn for each client.

Large bodies are taken in piece by piece, one connection after the other: a client on the same
machine or a fast network delivers gigabytes a second, and eight of them keep an event loop busy
with copying.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import OrderedDict, deque
from collections.abc import Callable

from uvicorn.server import ServerState

_MOST, _FIRST = 64, 8  # requests begun in a turn
_LONG_S, _SHORT_S = 0.001, 0.0005  # of a turn: what a token of another stream may wait
_KEY = re.compile(rb"\r\n(?:authorization|x-api-key):[ \t]*([^\r\n]{1,512})", re.IGNORECASE)


def caller_key(head: bytes, address: str) -> bytes:
    """Whose request it is, by its first bytes: the key that it brings, else where it comes from."""
    # Bytes, not parsed headers: a request that waits has cost next to nothing yet.
    found = _KEY.search(head, 0, 1 << 14)
    return found.group(1) if found else address.encode()


class Beginnings:
    """How many requests may begin in a turn of the loop: fewer after a long turn, more after a
    short one. The others wait, each caller's in order, one caller after the other."""

    def __init__(
        self,
        soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`soon` has something called in the loop's next turn."""
        self._soon = soon
        self._clock = clock
        self._waiting: OrderedDict[bytes, deque[Callable[[], None]]] = OrderedDict()
        self._most = _FIRST
        self._begun = 0
        self._since = 0.0

    def __len__(self) -> int:
        """Requests that wait for their turn."""
        return sum(map(len, self._waiting.values()))

    def begin(self) -> bool:
        """Whether a request may begin now; if not, `wait`."""
        # Who waits goes before who comes.
        if self._waiting or self._begun >= self._most:
            return False
        self._count()
        return True

    def wait(self, caller: bytes, go_on: Callable[[], None]) -> None:
        """`go_on` is called when it is the turn of a request, which begins then."""
        self._waiting.setdefault(caller, deque()).append(go_on)

    def _count(self) -> None:
        if not self._begun:
            self._since = self._clock()
            self._soon(self._turn)
        self._begun += 1

    def _turn(self) -> None:
        took_s = self._clock() - self._since
        if took_s > _LONG_S:
            # Down by half, up by one: it settles quickly after a burst of long prompts.
            self._most = max(1, self._most // 2)
        elif took_s < _SHORT_S:
            self._most = min(_MOST, self._most + 1)
        self._begun = 0
        while self._waiting and self._begun < self._most:
            # Counted first: it calls for the next turn, which comes even if this beginning raises.
            self._count()
            self._next()()

    def _next(self) -> Callable[[], None]:
        """The first of the caller whose turn it is, who is last in line then."""
        caller, line = self._waiting.popitem(last=False)
        go_on = line.popleft()
        if line:
            self._waiting[caller] = line
        return go_on


LARGE = 1 << 20
"""Bytes of a body that are taken in as they come; what follows waits for its turn."""


class BodyTurns:
    """Turns of the connections that receive large bodies: one piece, of 256 KiB at most, in a turn
    of the event loop, so that other events are seen to between two pieces."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._next_turn: asyncio.Handle | None = None

    def wait(self, go_on: Callable[[], None]) -> None:
        """`go_on` is called when another piece may be read."""
        self._waiting.append(go_on)
        if self._next_turn is None:
            self._rest()

    async def turn(self) -> None:
        """`wait` within a task."""
        future = asyncio.get_running_loop().create_future()
        # The task may have been cancelled while it waited.
        self.wait(lambda: None if future.done() else future.set_result(None))
        await future

    def _rest(self) -> None:
        self._next_turn = asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._next_turn = None
        go_on = self._waiting.popleft()
        # Before `go_on`, which may raise: the others keep their turns.
        if self._waiting:
            self._rest()
        go_on()


class SharedState(ServerState):
    """uvicorn's state of a server, which all its connections see. `keep_alive`: whether they may
    have another request after the one that is answered. `beginnings`: when new ones begin;
    `intake`: when more of large bodies is read that the application does not take itself."""

    def __init__(self) -> None:
        super().__init__()
        self.keep_alive = True
        self.beginnings = Beginnings(asyncio.get_running_loop().call_soon)
        self.intake = BodyTurns()
