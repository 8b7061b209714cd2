"""Which functions of the project each test calls, so that a mutant meets the tests that run it.

What a test calls in processes of its own is not seen. A fixture that tests share counts for the
first of them.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

Function = tuple[str, str]
"""A module's path below the root, and a qualified name in it."""


@dataclass
class Reached:
    """Of one test that passes."""

    seconds: float
    functions: set[Function]


class Recorder:
    """A plugin of pytest that writes down what each test calls."""

    def __init__(self, root: Path, written: Path) -> None:
        self._root, self._written = f"{root}{os.sep}", written
        self._seen: dict[int, CodeType] = {}  # code is kept: ids are given again
        self._functions: set[Function] = set()
        self._tests: dict[str, Reached] = {}
        self._failed: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self._seen.clear()
        self._functions = set()
        self._tests[item.nodeid] = Reached(0.0, self._functions)
        threading.settrace(self._called)
        sys.settrace(self._called)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._tests[report.nodeid].seconds += report.duration
        if not report.passed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        tests = {
            name: [round(test.seconds, 3), sorted(test.functions)]
            for name, test in self._tests.items()
            if name not in self._failed
        }
        outside = [name for name, module in list(sys.modules.items()) if self._is_outside(module)]
        self._written.write_text(json.dumps({"tests": tests, "imported": outside}))

    def _called(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if id(code) not in self._seen:
            self._seen[id(code)] = code
            if code.co_filename.startswith(self._root):
                path = code.co_filename.removeprefix(self._root)
                self._functions.add((path, code.co_qualname))

    def _is_outside(self, module: Any) -> bool:
        file = getattr(module, "__file__", None) or self._root
        spec = getattr(module, "__spec__", None)
        return spec is not None and not file.startswith(self._root)


class Reach:
    """What is known of tests, kept in a file. A test file that changes is looked at again; what it
    calls may also change with the code, of which this knows nothing."""

    def __init__(self, root: Path, kept: Path) -> None:
        self._root, self._kept = root, kept
        self._files: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}

    def unknown(self, files: Iterable[str]) -> list[str]:
        """Those of some test files that are new or have changed."""
        return [f for f in files if self._files.get(f, {}).get("digest") != self._digest(f)]

    def add(self, files: Iterable[str], recorded: Path) -> None:
        """Take what a `Recorder` has written about whole files."""
        found = json.loads(recorded.read_text())
        for file in files:
            tests = {n: t for n, t in found["tests"].items() if n.partition("::")[0] == file}
            self._files[file] = {"digest": self._digest(file), "tests": tests}
        self._files[""] = {"imported": list(dict.fromkeys([*self.imported, *found["imported"]]))}
        self._kept.write_text(json.dumps(self._files))

    @property
    def imported(self) -> list[str]:
        """Modules that are not the project's, in the order in which tests imported them."""
        return list(self._files.get("", {}).get("imported", []))

    def tests(self, files: Iterable[str]) -> dict[str, Reached]:
        """By the names of tests."""
        return {
            name: Reached(seconds, {(path, function) for path, function in functions})
            for file in files
            for name, (seconds, functions) in self._files[file]["tests"].items()
        }

    def _digest(self, file: str) -> str:
        return hashlib.sha256((self._root / file).read_bytes()).hexdigest()[:16]
