"""How many of the proxy's files a streamed chat with two pictures enters, in the tokens dialect."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

_READY_S, _ANSWER_S = 60.0, 30.0


@dataclass(frozen=True)
class RequestWay:
    files: int
    calls_across: int


def counted(tree: Path) -> RequestWay:
    """A warm proxy of `tree` before three mock workers; its second such request is counted.

    Raises `TimeoutError` if a process is not ready, or the count not written, in time.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        shutil.copy(Path(__file__).with_name("recorder.py"), folder / "sitecustomize.py")
        output = folder / "count.json"
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(folder), str(tree))),
            "TREE_COUNT": str(output),
            "TREE_ROOT": f"{tree}{os.sep}",
        }
        urls = {}
        for role in ("encode", "prefill", "decode"):
            urls[role] = f"http://127.0.0.1:{_port()}"
            command = ["services.mock", "--role", role, "--model", "models/demo"]
            stack.enter_context(_running(tree, environment, command, urls[role]))
        lists = [part for role, url in urls.items() for part in (f"--{role}-servers-urls", url)]
        front = f"http://127.0.0.1:{_port()}"
        command = ["proxy", "--model", "models/demo", "--dialect", "tokens", *lists]
        proxy = stack.enter_context(_running(tree, environment, command, front))
        _ask(front, 1)
        proxy.send_signal(signal.SIGUSR2)
        _ask(front, 2)
        proxy.send_signal(signal.SIGUSR2)
        return _read(output)


@contextmanager
def _running(
    tree: Path, environment: dict[str, str], command: list[str], url: str
) -> Iterator[subprocess.Popen[bytes]]:
    port = url.rpartition(":")[2]
    process = subprocess.Popen(
        [sys.executable, "-m", *command, "--host", "127.0.0.1", "--port", port],
        cwd=tree, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        _wait(url)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(url: str) -> None:
    end = time.monotonic() + _READY_S
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=1.0):
                return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(f"{url} is not ready after {_READY_S:.0f} s")


def _read(path: Path) -> RequestWay:
    end = time.monotonic() + _ANSWER_S
    while not path.exists():
        if time.monotonic() > end:
            raise TimeoutError("the proxy has not written its count")
        time.sleep(0.05)
    found = json.loads(path.read_text())
    return RequestWay(len(found["files"]), found["across"])


def _ask(front: str, seed: int) -> None:
    """A streamed chat with two pictures that differ by `seed`."""
    parts: list[dict[str, object]] = [{"type": "text", "text": "What is in these images?"}]
    for number in range(2):
        url = _picture((40 * seed + 90 * number) % 256)
        parts.append({"type": "image_url", "image_url": {"url": url}})
    body = {
        "model": "models/demo", "stream": True, "max_tokens": 8,
        "messages": [{"role": "user", "content": parts}],
    }  # fmt: skip
    request = urllib.request.Request(
        f"{front}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:
        if not re.search(rb"data: \[DONE\]", answer.read()):
            raise RuntimeError("the stream has no end")


def _picture(shade: int) -> str:
    output = io.BytesIO()
    Image.new("RGB", (64, 64), (shade, 80, 120)).save(output, "PNG")
    return f"data:image/png;base64,{base64.b64encode(output.getvalue()).decode()}"


def _port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
