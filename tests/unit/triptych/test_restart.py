"""`triptych restart` where a process does not come back."""

import shutil
import threading
from pathlib import Path

import pytest

from protocol.settings import resolve
from tests.support.waiting import until
from triptych.launch.membership import OwnWorkers
from triptych.launch.options import ServeConfig
from triptych.launch.plan import Service
from triptych.launch.processes import Processes
from triptych.launch.restart import main
from triptych.launch.rolling import Stack
from triptych.launch.serve import _keep_running

NOWHERE = "http://127.0.0.1:1"


def test_who_asks_is_told_what_the_system_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    monkeypatch.setattr("triptych.launch.control._ASK_S", 30.0)
    program = Path("worker")
    program.symlink_to(str(shutil.which("sleep")))
    worker = Service("decode-0", ("./worker", "60"), NOWHERE)
    proxy = Service("proxy", ("sleep", "60"), NOWHERE)
    stack = Stack([worker], None, proxy, OwnWorkers({}), stop_s=10.0, start_s=0.0)
    processes = Processes(Path(), {}, lambda line: None)
    config = resolve(ServeConfig, ["--model", "demo"], {})
    watching = threading.Thread(target=_keep_running, args=(config, processes, Path(), stack))
    processes.start([worker, proxy])
    program.unlink()
    watching.start()
    try:
        found: list[int] = []

        def answered() -> bool:
            found.append(main(["--log-path", ".", "--roles", "decode"]))
            return found[-1] != 2  # the stack listens

        until(answered)
        assert found[-1] == 1
        assert "error: decode-0 cannot be started: " in capsys.readouterr().out
        assert watching.is_alive() and processes._running["proxy"].poll() is None
    finally:
        processes.asked_to_stop.set()
        watching.join()
        processes.stop(0.0)
