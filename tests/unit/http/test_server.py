"""What a server prints when it is ready."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

import pytest

from services.http.server import announce

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer


class Written(io.BytesIO):
    """What each write to a terminal or pipe carries."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []

    def write(self, data: Buffer, /) -> int:
        self.writes.append(bytes(data))
        return len(self.writes[-1])


def test_a_line_is_one_write_so_that_no_log_line_of_another_process_gets_into_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output = Written()
    unbuffered = io.TextIOWrapper(output, write_through=True)
    monkeypatch.setattr(sys, "stdout", unbuffered)

    announce("proxy ready on http://127.0.0.1:8000")

    assert output.writes == [b"proxy ready on http://127.0.0.1:8000\n"]
