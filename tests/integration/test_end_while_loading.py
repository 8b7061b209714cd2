"""A process that is told to end before it serves ends at once, also as the first of a container."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.waiting import until

END_S = 9.0  # less than an engine has to end by itself
START_S = 240.0
SLOW = "import time; print('loading', flush=True); time.sleep(600)"
ENDED = 128 + signal.SIGTERM
AS_FIRST = ("unshare", "--pid", "--fork", "--kill-child")  # with process id 1, as in a container
CAN_BE_FIRST = subprocess.run([*AS_FIRST, "true"], capture_output=True, check=False).returncode == 0


def kinds(*commands: str) -> pytest.MarkDecorator:
    """Each command as one process of many and as process 1. Not slow are the first as process 1,
    where there is the right to make a namespace of processes, and the others as one of many."""
    often = {(AS_FIRST if place == 0 and CAN_BE_FIRST else (), one)
             for place, one in enumerate(commands)}  # fmt: skip
    lacking = pytest.mark.skipif(not CAN_BE_FIRST, reason="no right to a namespace of processes")
    return pytest.mark.parametrize(("before", "command"), [
        pytest.param(before, command, id=f"{command}-{name}", marks=[
            *[lacking] * bool(before), *[pytest.mark.slow] * ((before, command) not in often),
        ])
        for command in commands
        for before, name in (((), "one-of-many"), (AS_FIRST, "process-1"))
    ])  # fmt: skip


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextlib.contextmanager
def started(before: tuple[str, ...], folder: Path, *words: str) -> Iterator[tuple[int, Path]]:
    """(its process id, its log) of `python -m triptych`, which ends on SIGTERM in `END_S`."""
    command = [*before, sys.executable, "-m", "triptych", *words, "--port", "0"]
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env={**os.environ, "TMPDIR": str(folder)}, stdout=output, stderr=output
        )
    try:
        if before:
            until(lambda: bool(children(process.pid)), bound_s=START_S)
        pid = children(process.pid)[0] if before else process.pid
        yield pid, log
        os.kill(pid, signal.SIGTERM)
        assert process.wait(END_S) == ENDED, log.read_text()
    finally:
        process.kill()
        process.wait()


@kinds("decode")
def test_a_worker_whose_engine_loads(before: tuple[str, ...], command: str, tmp_path: Path) -> None:
    words = (command, "--model", "demo", "--master-url", "http://127.0.0.1:9")
    with started(before, tmp_path, *words) as (pid, log):
        until(lambda: bool([*tmp_path.glob("triptych-*/s*/commands")]), log, START_S)
        (engine,) = children(pid)
    assert not Path(f"/proc/{engine}").exists()
    assert not [*tmp_path.glob("triptych-*/s*")], "its sockets are removed"
    assert "Traceback" not in log.read_text()


@kinds("proxy", "decode")
def test_one_that_reads_its_packages(
    before: tuple[str, ...], command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it has read its flags: one of its packages takes its time."""
    (tmp_path / "uvicorn.py").write_text(SLOW)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with started(before, tmp_path, command, "--no-such-flag") as (_, log):
        until(lambda: "loading" in log.read_text(), log, START_S)


def test_processes_of_a_proxy_are_ended_without_a_word(tmp_path: Path) -> None:
    words = ("proxy", "--workers", "2", "--model", "demo", "--master-url", "http://127.0.0.1:9")
    with started((), tmp_path, *words) as (pid, log):
        until(lambda: len(children(pid)) == 2, log, START_S)
    assert "Traceback" not in log.read_text()
