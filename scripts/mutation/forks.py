"""Tests run in forks of an interpreter that has imported what they need, save the project itself.

A fork sees one module changed, and so do the processes that its tests start; files are left alone.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

_MEMORY = 12 << 30
"""Bytes that a fork may allocate: a mutant may do so without an end."""
_NOT_FORKED = ("nixl", "ucxx", "libucx", "rmm", "cuda", "numba", "tests", "scripts")
"""Modules that do not bear a fork, or are the project's own under a general name."""
_AT_IMPORT = """
import importlib.machinery, os
_changed, _source = os.environ["MUTANT_OF"], os.environ["MUTANT"]
_get_code = importlib.machinery.SourceFileLoader.get_code
def get_code(self, fullname):
    path = self.get_filename(fullname)
    if os.path.realpath(path) != _changed:
        return _get_code(self, fullname)
    with open(_source) as file:
        return compile(file.read(), path, "exec")
importlib.machinery.SourceFileLoader.get_code = get_code
"""


@dataclass(frozen=True)
class Change:
    """A module's file, and the source in its place."""

    module: Path
    source: str


@dataclass(frozen=True)
class Ended:
    """How tests ended: `status` is pytest's, below zero after a signal, None after the time limit.
    `failed` is the first test that failed."""

    status: int | None
    failed: str


class _Chosen:
    """A plugin that keeps some tests, in their order, and writes down the first that fails."""

    def __init__(self, tests: Sequence[str], written: Path) -> None:
        self._tests, self._written = set(tests), written

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid in self._tests]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self._written.exists():
            self._written.write_text(json.dumps(report.nodeid))


def preload(names: Iterable[str]) -> None:
    """Import what forks then have; what cannot be imported alone they import themselves."""
    for name in names:
        if name.split(".")[0].removeprefix("_").startswith(_NOT_FORKED):
            continue
        with contextlib.suppress(Exception):
            importlib.import_module(name)


class Forks:
    def __init__(self, root: Path) -> None:
        self._root = root

    def chosen(self, tests: Sequence[str], limit_s: float, change: Change | None = None) -> Ended:
        """Run some tests, by their names and in the order of their files, up to the first that
        fails."""
        with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
            written = Path(folder, "failed")
            files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
            status = self.run(["-x", *files], _Chosen(tests, written), limit_s, folder, change)
            failed = json.loads(written.read_text()) if written.exists() else ""
        return Ended(status, failed)

    def run(
        self, arguments: Sequence[str], plugin: object, limit_s: float, folder: str,
        change: Change | None = None,
    ) -> int | None:  # fmt: skip
        """The status of pytest in a fork; what it leaves behind is ended with it."""
        child = os.fork()
        if not child:
            self._be_child(arguments, plugin, folder, change)
        try:
            return _waited(child, limit_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)

    def _be_child(
        self, arguments: Sequence[str], plugin: object, folder: str, change: Change | None
    ) -> None:
        """Never returns."""
        status = 70
        try:
            os.setsid()
            _quiet(Path(folder, "output"))
            resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
            os.chdir(self._root)
            scratch = Path(folder, "scratch")
            scratch.mkdir()
            tempfile.tempdir = os.environ["TMPDIR"] = str(scratch)
            if change is not None:
                _change(change, folder)
            options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments]
            status = int(pytest.main(options, plugins=[plugin]))
        finally:
            sys.stdout.flush()
            os._exit(status)


def _waited(child: int, limit_s: float) -> int | None:
    deadline = time.monotonic() + limit_s
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(0.02)


def _quiet(output: Path) -> None:
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT)
    for standard in (1, 2):
        os.dup2(descriptor, standard)


def _change(change: Change, folder: str) -> None:
    """Here, and in each interpreter that is started from here."""
    source = Path(folder, "mutant.py")
    source.write_text(change.source)
    Path(folder, "sitecustomize.py").write_text(_AT_IMPORT)
    os.environ["MUTANT"], os.environ["MUTANT_OF"] = str(source), str(change.module.resolve())
    paths = [folder, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    exec(_AT_IMPORT, {})
