"""The engine process: `python -m services.engine.process`, started by a worker.

It reads one line of JSON from standard input (`messages.Start`), connects to the worker's two
sockets and steps until told to stop or until the worker is gone.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections import deque
from typing import Any

import msgspec
import torch
import zmq

from connectors.config import drop_namespace
from connectors.node import Readable
from protocol.errors import ConfigError, TriptychError, error_info
from protocol.logs import configure_logging, set_log_level
from protocol.types import EncodeOutput, RequestOutput
from services.engine import messages, reports
from services.engine.engine import Engine
from services.engine.environment import ensure_writable
from services.engine.profiling import Profiler
from services.engine.pulse import Pulse, StepClock

logger = logging.getLogger("engine")
_ROUND_MS = 20  # between two looks at peers and signals while the worker takes no events
# Any other command may take long, as loading an adapter does, and is part of a step.
_QUICK = (messages.Generate, messages.Encode, messages.Abort, messages.Query)
_LAST_WORDS_S = 1.0  # for what is said at the end, to a worker that may not listen any more


class EngineProcess:
    """The loop around an engine: commands in, events out, nothing else.

    A worker may stop taking events for a while. The engine does not step then and takes no commands
    (nothing more is put out, so what waits is what one round has made), but serves its peers, whose
    leases and transfers are none of that worker's, and still notices that it should end.
    """

    def __init__(self, start: messages.Start) -> None:
        context: zmq.Context[Any] = zmq.Context.instance()
        self._commands = context.socket(zmq.PULL)
        self._commands.connect(start.commands)
        self._events = context.socket(zmq.PUSH)
        self._events.linger = round(_LAST_WORDS_S * 1000)
        self._events.connect(start.events)
        self._unsent: deque[bytes] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self._poller = zmq.Poller()
        self._poller.register(self._commands, zmq.POLLIN)
        self._poller.register(self._wake, zmq.POLLIN)
        self._peers: set[Readable] = set()
        # The worker never closes it: its end is the worker's.
        self._poller.register(sys.stdin.fileno(), zmq.POLLIN)
        self._sending = zmq.Poller()
        self._sending.register(self._events, zmq.POLLOUT)
        self._sending.register(sys.stdin.fileno(), zmq.POLLIN)
        self._stopping = False
        self._start = start
        self._profiler = Profiler()

    def run(self) -> None:
        """Serve until stopped. An error at the start reaches the worker as a `Fatal` event.

        Ctrl-C in a terminal reaches every process of the group, and systemd's SIGTERM every process
        of the unit: it is the worker that reacts, and that needs its engine until its end.
        """
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            ensure_writable()
            engine = Engine(self._start.config, lambda: os.eventfd_write(self._wake, 1))
        except Exception as error:
            drop_namespace()
            self._say_last(messages.Fatal(error_info(error)))
            raise
        self._send(engine.ready())
        steps = StepClock(engine.sizes)
        pulse = Pulse(self._start.beats, steps) if self._start.beats else None
        try:
            self._loop(engine, steps)
        except Exception as error:
            self._say_last(messages.Fatal(error_info(error)))
            raise
        finally:
            if pulse is not None:
                pulse.close()
            engine.close()

    def _stop(self) -> None:
        self._stopping = True

    def _loop(self, engine: Engine, steps: StepClock) -> None:
        while not self._stopping:
            if self._unsent and not self._deliver(engine):
                return
            ready = self._wait(engine)
            if sys.stdin.fileno() in ready:
                return
            if self._wake in ready:
                os.eventfd_read(self._wake)
            # Before the commands are taken: one that hangs must show as a step that does not end.
            steps.begin()
            outputs, encoded = self._receive(engine)
            stepped = engine.step()
            outputs += stepped[0]
            encoded += stepped[1]
            stages = engine.stages()
            if outputs or encoded or stages:
                self._send(messages.Outputs(outputs, encoded, stages))
            steps.end()

    def _deliver(self, engine: Engine) -> bool:
        """Wait until the worker has taken what is unsent; False if it is gone or has said stop."""
        while self._flush():
            ready = dict(self._sending.poll(_ROUND_MS))
            if self._stopping or sys.stdin.fileno() in ready:
                return False
            engine.serve_peers()
        return True

    def _wait(self, engine: Engine) -> dict[Any, int]:
        """Sleep until there is something to do; what is readable."""
        sockets = engine.sockets
        for gone in self._peers - set(sockets):
            self._poller.unregister(gone)
        for new in set(sockets) - self._peers:
            self._poller.register(new, zmq.POLLIN)
        self._peers = set(sockets)
        # Right before the poll: it arms the transports whose descriptors are polled.
        wait_ms = round(engine.wait_s * 1000)
        if wait_ms:
            engine.rest()
        return dict(self._poller.poll(wait_ms))

    def _receive(self, engine: Engine) -> tuple[list[RequestOutput], list[EncodeOutput]]:
        outputs: list[RequestOutput] = []
        encoded: list[EncodeOutput] = []
        while not self._unsent:
            try:
                data = self._commands.recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            try:
                command = messages.decode_command(data)
            except msgspec.DecodeError as error:
                logger.error("a command of the worker is not understood: %s", error)
                continue
            self._handle(engine, command, outputs, encoded)
        return outputs, encoded

    def _handle(
        self,
        engine: Engine,
        command: messages.Command,
        outputs: list[RequestOutput],
        encoded: list[EncodeOutput],
    ) -> None:
        if not isinstance(command, _QUICK):
            engine.sizes.does_else()
        match command:
            case messages.Generate(request, traced):
                outputs += engine.add(request)
                if traced and engine.generate is not None:
                    engine.generate.trace(request.request_id)
            case messages.Encode(pictures, traced):
                encoded += engine.add_media(pictures)
                if traced and engine.encode is not None:
                    engine.encode.trace(pictures.request_id)
            case messages.Abort(request_ids, index):
                if engine.generate is not None:
                    engine.generate.abort(request_ids, index)
                if engine.encode is not None:
                    engine.encode.abort(request_ids)
            case messages.ResetCaches(prefix, encoder):
                engine.reset_caches(prefix=prefix, encoder=encoder)
            case messages.Profile(path):
                with engine.occupied():
                    self._profiler.stop(path) if path else self._profiler.start()
            case messages.Query():
                self._send(reports.answer(engine, command))
            case messages.LoadAdapter() | messages.UnloadAdapter():
                with engine.occupied():
                    table = reports.adapters_after(engine.adapters, command)
                self._send(table)
            case messages.SetLogLevel(level):
                set_log_level(level)
            case messages.Shutdown():
                self._stop()

    def _send(self, event: messages.Event) -> None:
        """Never waits: what the worker does not take now follows in order."""
        self._unsent.append(messages.encode(event))
        self._flush()

    def _flush(self) -> bool:
        """Whether anything is still unsent."""
        while self._unsent:
            try:
                self._events.send(self._unsent[0], zmq.NOBLOCK)
            except zmq.Again:
                return True
            self._unsent.popleft()
        return False

    def _say_last(self, event: messages.Event) -> None:
        """Before the end, in the time that there is."""
        self._send(event)
        until = time.monotonic() + _LAST_WORDS_S
        while self._flush() and not self._stopping and time.monotonic() < until:
            if sys.stdin.fileno() in dict(self._sending.poll(_ROUND_MS)):
                return


def main() -> int:
    start = msgspec.json.decode(sys.stdin.readline(), type=messages.Start)
    configure_logging("engine", start.config.log_level, start.config.log_format)
    if start.config.num_threads:
        torch.set_num_threads(start.config.num_threads)
    try:
        EngineProcess(start).run()
    except ConfigError:
        return 2  # the worker prints what is wrong
    except TriptychError as error:
        logger.error("%s", error.message)
        return 1
    finally:
        zmq.Context.instance().destroy(linger=1000)
    return 0


if __name__ == "__main__":
    sys.exit(main())
