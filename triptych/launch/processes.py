"""Processes of a stack: started with a log each, awaited, watched, ended by their own ids."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from triptych.launch.plan import Service

_POLL_S = 0.1
_PROBE_S = 2.0
_TAIL_LINES = 20


class LaunchError(Exception):
    """A process did not do what it was started for; the message says which one and shows why."""


class Stopped(Exception):
    """The user has asked for the end while something was awaited."""


class Processes:
    """Those of one stack. `stop` ends them all, in any state."""

    def __init__(
        self, logs: Path, environment: Mapping[str, str], say: Callable[[str], None]
    ) -> None:
        """`environment` is added to this process's own; `say` gets a line for each one ready."""
        self.asked_to_stop = threading.Event()
        self._logs = logs
        self._environment = {**os.environ, **environment}
        self._say = say
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._started = time.monotonic()

    @property
    def age(self) -> float:
        """Seconds since this object was made."""
        return time.monotonic() - self._started

    def start(self, services: Iterable[Service]) -> None:
        for service in services:
            self._running[service.name] = self._launched(service)

    def run(self, name: str, command: Sequence[str]) -> None:
        """A command that ends by itself, on this process's terminal. LaunchError, Stopped."""
        try:
            process = subprocess.Popen(command, env=self._environment, start_new_session=True)
        except OSError as error:
            raise LaunchError(f"{name} cannot be started: {error}") from error
        self._running[name] = process
        while process.poll() is None:
            self.pause()
        del self._running[name]
        if process.returncode:
            raise LaunchError(
                f"{name} failed with exit status {process.returncode}; logs are in {self._logs}"
            )

    def restart(self, service: Service, timeout_s: float, patience_s: float) -> None:
        """End the process, start it again, wait until it answers. LaunchError, Stopped."""
        self._end(self._running[service.name], patience_s)
        deadline = time.monotonic() + timeout_s
        self._running[service.name] = self._launched_again(service, deadline)
        self.wait_ready([service], max(0.0, deadline - time.monotonic()))

    def replace(self, service: Service, timeout_s: float, patience_s: float) -> None:
        """Start a second process on the sockets of the first, and end the first once the second
        says that it is ready: both have one address, so it cannot be asked. LaunchError, Stopped.
        """
        # Both write to one log: what stood there before was said by the first.
        log, name = self._log(service.name), f"the new {service.name}"
        offset, deadline = _size(log), time.monotonic() + timeout_s
        new = self._running[name] = self._launched(service, again=True)
        while b" ready on http" not in _written_since(log, offset):
            if new.poll() is not None or time.monotonic() > deadline:
                self._end(self._running.pop(name), _PROBE_S)
                raise LaunchError(self._failure(service.name, "was not ready when started again"))
            self.pause()
        old = self._running[service.name]
        self._running[service.name] = self._running.pop(name)
        self._say(f"  {service.name}  {service.url}  taken over after {self.age:.1f} s")
        self._end(old, patience_s)

    def _launched_again(self, service: Service, deadline: float) -> subprocess.Popen[bytes]:
        """One that has ended. What the system lacks for it, such as memory, may be there in a
        moment; without it the stack would have lost a worker. LaunchError, Stopped."""
        while True:
            try:
                return self._launched(service, again=True)
            except LaunchError:
                if time.monotonic() > deadline:
                    raise
            self.pause()

    def _launched(self, service: Service, *, again: bool = False) -> subprocess.Popen[bytes]:
        """LaunchError if the system does not start it."""
        # In a session of its own, so that a Ctrl-C reaches it as this process's polite request.
        try:
            # To append: while one replaces another both write, each behind what the other wrote.
            with self._log(service.name).open("ab") as log:
                if not again:
                    log.truncate(0)
                return subprocess.Popen(
                    service.command,
                    env={**self._environment, **service.environment},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=service.sockets,
                )
        except OSError as error:
            raise LaunchError(f"{service.name} cannot be started: {error}") from error

    def wait_ready(self, services: Iterable[Service], timeout_s: float) -> None:
        """Until all answer; each that does is said. Raises LaunchError, Stopped."""
        waiting = list(services)
        deadline = time.monotonic() + timeout_s
        width = max((len(service.name) for service in waiting), default=0)
        while waiting:
            for service in list(waiting):
                if (status := self._running[service.name].poll()) is not None:
                    raise LaunchError(self._failure(
                        service.name, f"ended with exit status {status} before it was ready"
                    ))  # fmt: skip
                if _answers(f"{service.url}/health"):
                    waiting.remove(service)
                    self._say(
                        f"  {service.name:{width}}  {service.url}  ready after {self.age:.1f} s"
                    )
            if waiting and time.monotonic() > deadline:
                name, url = waiting[0].name, waiting[0].url
                what = f"has not answered {url}/health with 200 within {timeout_s:g} s"
                raise LaunchError(self._failure(name, f"{what} (--timeout-seconds)"))
            if waiting:
                self.pause()

    def watch(self, needed: str, between: Callable[[], None] = lambda: None) -> None:
        """Until the end is asked for; says which processes end before. LaunchError once `needed`
        has. `between` is called again and again, and may restart processes."""
        ended: set[int] = set()
        while not self.asked_to_stop.wait(_POLL_S):
            between()
            for name, process in self._running.items():
                if process.poll() is None or process.pid in ended:
                    continue
                # By id, not by name: one that was restarted has the name of the one that has ended.
                ended.add(process.pid)
                what = f"ended with exit status {process.returncode}"
                if name == needed:
                    raise LaunchError(self._failure(name, what))
                self._say(f"{name} has {what}; its log is {self._log(name)}")

    def stop(self, patience_s: float) -> None:
        """End all: politely, so that requests in progress may end; by force after `patience_s`."""
        for process in self._running.values():
            process.terminate()
        deadline = time.monotonic() + patience_s
        for process in self._running.values():
            _awaited(process, max(0.0, deadline - time.monotonic()))
        # Only once all have ended: a second Ctrl-C interrupts this, and `stop` is called again.
        self._running.clear()

    @staticmethod
    def _end(process: subprocess.Popen[bytes], patience_s: float) -> None:
        process.terminate()
        _awaited(process, patience_s)

    def wait_until(self, done: Callable[[], bool], timeout_s: float, failure: str) -> None:
        """Raises LaunchError with `failure`, Stopped."""
        deadline = time.monotonic() + timeout_s
        while not done():
            if time.monotonic() > deadline:
                raise LaunchError(f"{failure} after {timeout_s:g} s (--timeout-seconds)")
            self.pause()

    def pause(self) -> None:
        """For a moment. Stopped."""
        if self.asked_to_stop.wait(_POLL_S):
            raise Stopped

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    def _failure(self, name: str, what: str) -> str:
        log = _written_since(self._log(name), 0).decode(errors="replace")
        lines = log.splitlines()[-_TAIL_LINES:]
        end = "\n".join(["The end of its log:", *lines]) if lines else "Its log is empty or gone."
        return f"{name} {what}; logs are in {self._logs}. {end}"


def _awaited(process: subprocess.Popen[bytes], patience_s: float) -> None:
    """Until it has ended, by force after `patience_s`."""
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        # Its children are in its group: an engine must not outlive its worker.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _size(log: Path) -> int:
    with contextlib.suppress(OSError):
        return log.stat().st_size
    return 0


def _written_since(log: Path, offset: int) -> bytes:
    """Nothing if the log cannot be read: an operator may have removed it."""
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(offset)
        return file.read()
    return b""


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=_PROBE_S) as response:
            return bool(response.status == 200)
    except (OSError, http.client.HTTPException):
        return False


@contextlib.contextmanager
def stopping_on_signals(processes: Processes) -> Iterator[None]:
    """The first SIGINT or SIGTERM asks for the end; a further one interrupts the waiting for it."""

    def ask(number: int, frame: object) -> None:
        if processes.asked_to_stop.is_set():
            raise KeyboardInterrupt
        processes.asked_to_stop.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
