"""`python -m tests.support.shared_run PROCESSES [arguments of pytest]`: run tests in so many
processes that share what this one has imported, compiled and collected.

pytest-xdist starts each of its processes as a new interpreter, which then imports and collects
everything for itself, 23 s of processor time. Here it starts `forked_interpreter`.
"""

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.fork_server import TRANSPORTS, listening, preload, serve
from tests.support.forked import SERVER

_COMPILED_S = 600.0  # until all kernels are compiled, beside other work


def main(processes: int, arguments: Sequence[str]) -> int:
    """pytest's exit status."""
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # the other one could not be forked
    kernels = subprocess.Popen([sys.executable, "-m", "tests.support.preloaded"])
    with Path(os.devnull).open("w") as nothing, contextlib.redirect_stdout(nothing):
        pytest.main(["--collect-only", "-q", *arguments])  # its errors are found by each again
    kernels.wait(_COMPILED_S)
    preload()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest, which ends then
    with tempfile.TemporaryDirectory(prefix="forks-") as folder:
        services, interpreters = (str(Path(folder, name)) for name in ("services", "interpreters"))
        _serve_services(listening(services))
        interpreter = [sys.executable, "-m", "tests.support.forked_interpreter", interpreters]
        command = [
            sys.executable, "-m", "pytest", "--dist", "loadfile", "--no-loadscope-reorder",
            "--tx", f"{processes}*popen//python={shlex.join(interpreter)}", *arguments,
        ]  # fmt: skip
        with listening(interpreters) as listener:
            tests = subprocess.Popen(command, env={**os.environ, SERVER: services})
            serve(listener, os.pidfd_open(tests.pid))
            return tests.wait()


def _serve_services(listener: socket.socket) -> None:
    """In a process of its own, which ends with this one."""
    this = os.getpid()
    with listener:
        if not os.fork():
            preload(TRANSPORTS)
            serve(listener, os.pidfd_open(this))
            os._exit(0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
