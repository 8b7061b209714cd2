"""Processes of a stack: awaited, watched, ended."""

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.common.processes import free_port
from triptych.launch.plan import Service
from triptych.launch.processes import LaunchError, Processes, Stopped

SERVER = """
import http.server, signal, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *args):
        pass
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
signal.signal(signal.SIGTERM, {on_term})
server.serve_forever()
"""


def serving(name: str, on_term: str = "signal.SIG_DFL") -> Service:
    port = free_port()
    program = SERVER.replace("{on_term}", on_term)
    return Service(name, (sys.executable, "-c", program, str(port)), f"http://127.0.0.1:{port}")


def failing(name: str) -> Service:
    program = "print('no such model'); raise SystemExit(3)"
    return Service(name, (sys.executable, "-c", program), f"http://127.0.0.1:{free_port()}")


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def processes(tmp_path: Path, said: list[str]) -> Iterator[Processes]:
    made = Processes(tmp_path, {}, said.append)
    yield made
    made.stop(0.0)


def test_each_process_that_is_ready_is_said(processes: Processes, said: list[str]) -> None:
    services = [serving("one"), serving("two")]
    processes.start(services)
    processes.wait_ready(services, 60.0)
    assert sorted(line.split()[:2] for line in said) == [[s.name, s.url] for s in services]


def test_one_that_ends_before_it_is_ready_is_told_with_the_end_of_its_log(
    processes: Processes,
) -> None:
    services = [serving("well"), failing("ill")]
    processes.start(services)
    with pytest.raises(LaunchError, match=r"(?s)^ill ended with exit status 3.*no such model$"):
        processes.wait_ready(services, 60.0)


def test_one_that_does_not_answer_in_time_is_told(processes: Processes) -> None:
    deaf = Service("deaf", ("sleep", "60"), f"http://127.0.0.1:{free_port()}")
    processes.start([deaf])
    with pytest.raises(LaunchError, match=r"^deaf has not answered .*timeout-seconds"):
        processes.wait_ready([deaf], 0.0)


def test_a_command_that_is_not_there_is_told(processes: Processes) -> None:
    with pytest.raises(LaunchError, match=r"^asking cannot be started: .*no-such-program.*$"):
        processes.run("asking", ("/no-such-program",))


def test_one_that_the_system_does_not_start_is_told(processes: Processes) -> None:
    with pytest.raises(LaunchError, match=r"^absent cannot be started: .*no-such-program"):
        processes.start([Service("absent", ("./no-such-program",), "http://127.0.0.1:1")])


def test_one_that_cannot_be_started_again_is_once_it_can(tmp_path: Path) -> None:
    """Its log cannot be written at first."""

    class Mended(Processes):
        def pause(self) -> None:
            if log.is_dir():
                log.rmdir()
            super().pause()

    service, log = serving("worker"), tmp_path / "worker.log"
    processes = Mended(tmp_path, {}, lambda line: None)
    try:
        processes.start([service])
        processes.wait_ready([service], 60.0)
        before = processes._running["worker"]
        log.unlink()
        log.mkdir()
        processes.restart(service, 60.0, 60.0)
        after = processes._running["worker"]
        assert before.returncode == -signal.SIGTERM and after.poll() is None
    finally:
        processes.stop(0.0)


# Says once that it is ready, as a proxy does; each line is one write, or two processes mix theirs.
TALKING = """
import itertools, os, sys, time
for number in itertools.count():
    what = "ready on http://" if number == 0 else "working"
    os.write(1, f"{sys.argv[1]} {number} {what}\\n".encode())
    time.sleep(0.01)
"""


def test_one_that_replaces_another_and_that_one_write_to_one_log(
    processes: Processes, tmp_path: Path
) -> None:
    def talking(word: str) -> Service:
        command = (sys.executable, "-c", TALKING, word)
        return Service("proxy", command, f"http://127.0.0.1:{free_port()}")

    log = tmp_path / "proxy.log"
    log.write_text("of an earlier stack\n")
    processes.start([talking("old")])
    deadline = time.monotonic() + 60
    while "old" not in log.read_text():
        assert time.monotonic() < deadline
        processes.pause()
    processes.replace(talking("new"), 60.0, 60.0)
    processes.stop(60.0)
    lines = [line.split()[:2] for line in log.read_text().splitlines()]
    for word in ("old", "new"):
        said = [int(number) for first, number in lines if first == word]
        assert said and said == list(range(len(said))), word
    assert {first for first, _ in lines} == {"old", "new"}


def test_waiting_ends_when_the_user_asks_for_it(processes: Processes) -> None:
    services = [Service("slow", ("sleep", "60"), f"http://127.0.0.1:{free_port()}")]
    processes.start(services)
    processes.asked_to_stop.set()
    with pytest.raises(Stopped):
        processes.wait_ready(services, 60.0)


def test_the_end_of_a_worker_is_said_and_that_of_the_proxy_ends_it_all(
    processes: Processes, said: list[str]
) -> None:
    processes.start([failing("worker")])
    processes._running["worker"].wait(60.0)
    processes.start([failing("proxy")])
    with pytest.raises(LaunchError, match=r"^proxy ended with exit status 3"):
        processes.watch(needed="proxy")
    assert [line.split(";")[0] for line in said] == ["worker has ended with exit status 3"]


def test_what_does_not_end_politely_is_killed(processes: Processes) -> None:
    services = [serving("polite"), serving("stubborn", "signal.SIG_IGN")]
    processes.start(services)
    processes.wait_ready(services, 60.0)
    polite, stubborn = (processes._running[service.name] for service in services)
    processes.stop(1.0)
    assert polite.returncode == -signal.SIGTERM
    assert stubborn.returncode == -signal.SIGKILL


def test_a_command_that_fails_is_told_by_its_name(processes: Processes) -> None:
    with pytest.raises(LaunchError, match=r"^asking failed with exit status 3; "):
        processes.run("asking", failing("").command)
