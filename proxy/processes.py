"""Several processes of one proxy, which accept on one socket.

The parent only watches: it starts a process again that has died, and ends them all when it is told
to end. It forks before anything runs in it, so that a further process starts in milliseconds. A
process whose parent is gone ends too: the pipe between them then has no other end.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

logger = logging.getLogger(__name__)
BAD_CONFIGURATION = 2
_ENDED_EARLY = 128 + signal.SIGTERM  # as shells tell of a process that SIGTERM has ended
_WATCHED = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0  # before a process that died is started again; doubled
_LASTING_S = 60.0  # a process that has lived so long is started again after the shortest pause
_LOOK_S = 1.0  # the longest wait for a signal


@dataclass
class _Place:
    """One of the processes. `starts_at`: when it is to be started, of `time.monotonic`. `again`: it
    has ended before, but not for its configuration."""

    number: int
    pid: int = 0
    started_at: float = 0.0
    starts_at: float = 0.0
    pause_s: float = _PAUSE_S
    again: bool = False


@dataclass
class Processes:
    """`work` is what each process does, given its number and the end of a pipe at which it hears
    when the parent is gone; its exit status is returned. `end_s`: how long they have to end.
    `stop_accepting`: called once they are told to end, for a socket that the parent holds open
    would take connections that no process accepts."""

    work: Callable[[int, int], int]
    count: int
    end_s: float
    stop_accepting: Callable[[], None] = lambda: None
    _places: list[_Place] = field(init=False)
    _code: int = field(init=False, default=0)  # why they are ended
    _end_codes: list[int] = field(init=False, default_factory=list)
    _end_by: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self._places = [_Place(number) for number in range(self.count)]

    def run(self) -> int:
        """Until told to end; the exit status. Only from a process's main thread."""
        # No handlers: they would run between any two statements, while `_places` changes.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
        self._pipe = os.pipe()
        try:
            while True:
                self._start_due()
                if not self._alive() and self._end_by:
                    return self._status()
                # Blocked signals stay pending: none that came before this is missed.
                told = signal.sigtimedwait(_WATCHED, self._wait_s())
                if told is not None and told.si_signo != signal.SIGCHLD:
                    self._end()
                self._reap()
                if self._end_by and time.monotonic() >= self._end_by:
                    self._signal(signal.SIGKILL)
        finally:
            self._signal(signal.SIGKILL)
            for end in self._pipe:
                os.close(end)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _status(self) -> int:
        """As of one process: 143 if none served when it was told to end, 1 for another signal."""
        told = [code for code in self._end_codes if code != -signal.SIGTERM]
        failed = self._code or next((code for code in told if code), 0)
        if told or failed or not self._end_codes:
            return 1 if failed < 0 else failed
        return _ENDED_EARLY

    def _alive(self) -> bool:
        return any(place.pid for place in self._places)

    def _wait_s(self) -> float:
        now = time.monotonic()
        due = [place.starts_at - now for place in self._places if not place.pid]
        return max(0.0, min([_LOOK_S, *due]))

    def _start_due(self) -> None:
        now = time.monotonic()
        for place in self._places:
            if not (place.pid or self._end_by) and place.starts_at <= now:
                place.started_at, place.pid = now, self._fork(place.number)

    def _fork(self, number: int) -> int:
        sys.stdout.flush()
        sys.stderr.flush()
        # What a buffer holds at this point would be written by both.
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            # Or this process would hold the pipe's other end itself, and never see it close.
            os.close(self._pipe[1])
            # Before it serves the signal just ends it, as it is no container's first process.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            # Ctrl-C reaches the parent too, which passes it on: the second signal would hurry.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGCHLD))
            code = self.work(number, self._pipe[0])
        except BaseException:
            logger.exception("process %d of the proxy has failed", number)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            # Not `sys.exit`: this is inside the parent's `run`, whose end kills all the others.
            os._exit(code)

    def _end(self) -> None:
        """Those that are told a second time end at once."""
        self._end_by = self._end_by or time.monotonic() + self.end_s
        self.stop_accepting()
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        for place in self._places:
            if place.pid:
                # Not reaped yet, so that the number can be no other process's.
                os.kill(place.pid, number)

    def _reap(self) -> None:
        for place in self._places:
            if not place.pid:
                continue
            # Each is asked: of several that end together one SIGCHLD may tell.
            pid, status = os.waitpid(place.pid, os.WNOHANG)
            if pid:
                place.pid = 0
                self._ended(place, os.waitstatus_to_exitcode(status))

    def _ended(self, place: _Place, code: int) -> None:
        if self._end_by:
            self._end_codes.append(code)
            return
        if code == BAD_CONFIGURATION and not place.again:  # it would be the same again
            self._code = code
            self._end()
            return
        place.again = True
        lived_s = time.monotonic() - place.started_at
        place.pause_s = (
            _PAUSE_S if lived_s >= _LASTING_S else min(_LONGEST_PAUSE_S, place.pause_s * 2)
        )
        place.starts_at = time.monotonic() + place.pause_s
        how = (
            f"was ended by {signal.Signals(-code).name}"
            if code < 0
            else f"ended: exit status {code}, see the lines above"
        )
        logger.error(
            "process %d of the proxy %s; it is started again in %g s",
            place.number, how, place.pause_s,
        )  # fmt: skip
