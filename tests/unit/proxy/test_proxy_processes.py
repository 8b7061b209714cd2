"""Which processes of a proxy are started again, and with which status all of them end."""

import os
import signal
import socket
import subprocess
import sys

import pytest

from proxy.processes import BAD_CONFIGURATION, Processes


@pytest.mark.parametrize(("codes", "ends"), [((2,), True), ((1, 2), False), ((-9, 2, 2), False)])
def test_a_configuration_that_was_good_once_is_tried_again(
    codes: tuple[int, ...], ends: bool, caplog: pytest.LogCaptureFixture
) -> None:
    processes = Processes(lambda number, parent: 0, 2, 1.0)
    place = processes._places[0]
    for code in codes:
        processes._ended(place, code)
    assert (processes._end_by > 0, processes._code) == (ends, BAD_CONFIGURATION if ends else 0)
    assert ("exit status 2" in caplog.text) is not ends


SCRIPT = """
import os, signal, sys
from proxy.processes import Processes

def work(number, parent):
    status = sys.argv[1 + number]
    if status != "loading":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    os.write(1, b"begun\\n")
    if status == "loading":
        signal.pause()
    signal.sigwait({signal.SIGTERM})
    return int(status)

sys.exit(Processes(work, 2, 60.0).run())
"""


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        (("loading", "loading"), 143),
        (("0", "loading"), 0),
        (("loading", "0"), 0),
        (("0", "0"), 0),
        (("3", "loading"), 3),
    ],
)
def test_the_status_is_that_of_one_process(statuses: tuple[str, ...], expected: int) -> None:
    """`loading`: one that has no handler yet. The others end with that status, as they serve."""
    command = [sys.executable, "-c", SCRIPT, *statuses]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert [process.stdout.readline() for _ in statuses] == ["begun\n"] * 2
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == expected
        finally:
            process.kill()  # its own processes end with it


DRAINING = """
import os, signal, socket, sys
from proxy.processes import Processes

listener = socket.create_server(("127.0.0.1", 0))

def work(number, parent):
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})
    os.write(1, b"%d %d\\n" % (listener.getsockname()[1], os.getpid()))
    signal.sigwait({signal.SIGTERM})
    listener.close()
    os.write(1, b"draining\\n")
    signal.sigwait({signal.SIGUSR1})
    return 0

sys.exit(Processes(work, 1, 60.0, listener.close).run())
"""


def test_while_processes_drain_connections_are_refused() -> None:
    """Not accepted and reset at the end: a balancer would not try another proxy then."""
    command = [sys.executable, "-c", DRAINING]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            port, child = map(int, process.stdout.readline().split())
            socket.create_connection(("127.0.0.1", port), 10.0).close()
            process.send_signal(signal.SIGTERM)
            assert process.stdout.readline() == "draining\n"
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port), 10.0)
            os.kill(child, signal.SIGUSR1)
            assert process.wait(60) == 0
        finally:
            process.kill()  # its own process ends with it
