"""Servers that benchmarks start: those that do not come up say why, in time."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.common import processes
from benchmarks.common.processes import ending, free_port, mock_workers, processor_s, wait_ready


def test_mock_workers_are_known_by_their_urls(tmp_path: Path) -> None:
    flags = ["--role", "encode", "--dialect", "openai", "--log-level", "warning"]
    with mock_workers(flags, 2, tmp_path / "log") as (pid, urls):
        assert len({*urls}) == 2 and all(url.startswith("http://127.0.0.1:") for url in urls)
        os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_workers_that_do_not_start_say_why(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError, match=r"(?s)did not start:.*--role"),
        mock_workers(["--role", "nothing"], 1, tmp_path / "log"),
    ):
        pass


def test_workers_that_never_are_ready_are_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_START_S", 0.0)
    with (
        pytest.raises(RuntimeError, match="did not start"),
        mock_workers(["--role", "encode"], 1, tmp_path / "log"),
    ):
        pass


def test_a_server_that_ends_shows_the_end_of_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("no model\n")
    process = subprocess.Popen([sys.executable, "-c", ""])
    url = f"http://127.0.0.1:{free_port()}"
    with ending(process), pytest.raises(RuntimeError, match=r"did not start:\nno model"):
        wait_ready(process, url, log=log)


def test_processor_time_is_that_of_the_process() -> None:
    before, until = processor_s(os.getpid()), time.process_time() + 0.1
    while time.process_time() < until:
        pass
    assert processor_s(os.getpid()) >= before + 0.08
