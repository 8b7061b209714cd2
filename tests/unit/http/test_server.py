"""What a server prints when it is ready."""

import io
import sys

import pytest

from services.http.server import announce


class Written(io.RawIOBase):
    """What each write to a terminal or pipe carries."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        self.writes.append(bytes(data))  # type: ignore[call-overload]
        return len(self.writes[-1])


def test_a_line_is_one_write_so_that_no_log_line_of_another_process_gets_into_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output = Written()
    unbuffered = io.TextIOWrapper(output, write_through=True)  # type: ignore[arg-type]
    monkeypatch.setattr(sys, "stdout", unbuffered)

    announce("proxy ready on http://127.0.0.1:8000")

    assert output.writes == [b"proxy ready on http://127.0.0.1:8000\n"]
