"""Counts, inside a proxy, the files that a request enters and the calls between files.

The proxy's Python finds this file as `sitecustomize`. SIGUSR2 begins a count, the next one ends it
and writes it to $TREE_COUNT. Only functions that begin count: a coroutine that goes on does not.
"""

from __future__ import annotations

import json
import opcode
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

_RESUME = opcode.opmap["RESUME"]


class Recorder:
    """`root`: only calls from and to files below it count."""

    def __init__(self, root: str, output: Path) -> None:
        self._root, self._output = root, output
        self._files: Counter[str] = Counter()
        self._across = 0

    def toggle(self, *_: object) -> None:
        if sys.getprofile() is None:
            self._files.clear()
            self._across = 0
            sys.setprofile(self._called)
            return
        sys.setprofile(None)
        found = {"files": dict(self._files.most_common()), "across": self._across}
        part = self._output.with_suffix(".part")
        part.write_text(json.dumps(found))
        part.rename(self._output)

    def _called(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or not self._is_ours(frame) or not _begins(frame):
            return
        self._files[frame.f_code.co_filename.removeprefix(self._root)] += 1
        caller = frame.f_back
        while caller is not None and not self._is_ours(caller):
            caller = caller.f_back
        if caller is not None and caller.f_code.co_filename != frame.f_code.co_filename:
            self._across += 1

    def _is_ours(self, frame: FrameType) -> bool:
        name = frame.f_code.co_filename
        return name.startswith(self._root) and "site-packages" not in name


def _begins(frame: FrameType) -> bool:
    """RESUME 0 begins a function; 1 to 3 go on after a yield or an await."""
    code, at = frame.f_code.co_code, max(frame.f_lasti, 0)
    return code[at] != _RESUME or not code[at + 1] & 3


if (_output := os.environ.get("TREE_COUNT")) and "proxy" in sys.orig_argv:
    _recorder = Recorder(os.environ["TREE_ROOT"], Path(_output))
    signal.signal(signal.SIGUSR2, _recorder.toggle)
