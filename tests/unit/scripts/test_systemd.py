"""The unit of systemd: words that systemd knows, and times that our processes need to end."""

import configparser
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from protocol.settings import resolve
from proxy.config import ProxyConfig
from services.master.config import MasterConfig
from services.worker.config import WorkerConfig

UNIT = Path(__file__).parents[3] / "deploy" / "systemd" / "triptych@.service"
CONFIGS: tuple[type[Any], ...] = (WorkerConfig, MasterConfig, ProxyConfig)
PROGRAM = "/opt/triptych/bin/triptych"


def section(name: str) -> dict[str, str]:
    """Each setting; of one that is given twice the last."""
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment]
    parser.read_string(UNIT.read_text())
    return dict(parser[name])


def test_a_process_has_the_time_that_it_takes_to_end() -> None:
    service = section("Service")
    assert service["ExecStart"] == f"{PROGRAM} %i"
    for config in CONFIGS:
        taken = resolve(config, ["--model", "demo"] if config is not MasterConfig else [], {})
        needed = taken.drain_delay + taken.shutdown_timeout + 10
        assert int(service["TimeoutStopSec"]) >= needed
    # The engine is told to end by its worker, and does not take the signal itself.
    assert service["KillMode"] == "mixed"
    assert service["SuccessExitStatus"] == "143", "of one that is ended while it loads"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
def test_systemd_knows_every_word(tmp_path: Path) -> None:
    """It only warns of words that it does not know."""
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace(PROGRAM, shutil.which("true") or "/bin/true"))
    command = ["systemd-analyze", "verify", "--man=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
