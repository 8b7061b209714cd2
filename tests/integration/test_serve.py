"""`triptych serve` as a user starts it, with workers that have no model."""

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from benchmarks.ask import main as ask
from benchmarks.common.pictures import encode_image
from benchmarks.common.processes import free_port
from tests.support.stack import START_S, STOP_S

ROOT = Path(__file__).parents[2]
PORTS = ("--port", "--master-port", "--encode-port", "--decode-port")


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], "queue.Queue[str]"]]:
    first = free_port(len(PORTS))
    ports = [word for place, flag in enumerate(PORTS) for word in (flag, str(first + place))]
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "triptych", "serve", "demo", "--engine", "mock",
         "--num-p", "0", *ports],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    lines: queue.Queue[str] = queue.Queue()
    assert process.stdout is not None
    reader = threading.Thread(target=lambda out: [lines.put(x) for x in out], args=[process.stdout])
    reader.start()
    yield process, lines
    process.kill()
    process.wait(STOP_S)
    reader.join(STOP_S)
    process.stdout.close()


def test_a_stack_says_one_address_answers_there_and_ends_when_it_is_told(
    serving: tuple[subprocess.Popen[str], "queue.Queue[str]"],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    process, lines = serving
    seen: list[str] = []
    while not seen or not seen[-1].startswith("Serving at "):
        seen.append(lines.get(timeout=START_S))
    ready = {line.split()[0] for line in seen if " ready after " in line}
    assert ready == {"master", "encode-0", "decode-0", "proxy"}
    url = seen[-1].split()[2].removesuffix("/v1")
    picture = tmp_path / "picture.png"
    picture.write_bytes(encode_image(Image.new("RGB", (64, 64))))
    assert ask(["--base-url", url, "What is this?", "--image", str(picture)]) == 0
    assert capsys.readouterr().out.strip()
    process.send_signal(signal.SIGTERM)
    assert process.wait(STOP_S) == 0
    logs = {path.stem for path in (tmp_path / "logs").glob("*.log")}
    assert logs == ready
