"""Processes forked from one that has imported everything."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.forked import SERVER, Forked, server
from tests.support.waiting import until

LIMIT_S = 60.0


def test_it_ends_with_the_status_that_python_would_give_it() -> None:
    assert [
        Forked(target, *arguments).wait(LIMIT_S)
        for target, arguments in (
            (os.getpid, ()), (sys.exit, (3,)), (sys.exit, ("why",)), (int, ("none",)),
            (os.abort, ()),
        )
    ] == [0, 3, 1, 1, -signal.SIGABRT]  # fmt: skip


def test_it_has_everything_imported_and_copies_of_descriptors() -> None:
    reader, writer = os.pipe()
    process = Forked(_say_modules, descriptors=[writer])
    os.close(writer)
    with os.fdopen(reader) as said:
        assert "torch transformers" in said.read()
    assert process.wait(LIMIT_S) == 0


def test_one_that_runs_can_be_waited_for_and_told_to_end() -> None:
    process = Forked(time.sleep, LIMIT_S)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == process.poll() == -signal.SIGTERM
    process.kill()  # nothing is left to kill


def test_it_ends_with_the_process_that_wanted_it(tmp_path: Path) -> None:
    """Which is killed here: nothing tells the server but the end of the connection."""
    note = tmp_path / "pid"
    wanting = Forked(_want_and_die, server(), note)
    assert wanting.wait(LIMIT_S) == -signal.SIGKILL
    until(lambda: not Path(f"/proc/{note.read_text()}").exists())


def _say_modules(descriptor: int) -> None:
    found = [name for name in ("torch", "transformers") if name in sys.modules]
    os.write(descriptor, " ".join(found).encode())


def _want_and_die(path: str, note: Path) -> None:
    os.environ[SERVER] = path
    note.write_text(str(Forked(time.sleep, LIMIT_S).pid))
    os.kill(os.getpid(), signal.SIGKILL)
