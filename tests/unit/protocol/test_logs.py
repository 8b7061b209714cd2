"""Log lines as text and as JSON."""

import json
import logging
import sys

import pytest

from protocol.logs import JsonLines, TextLines, plain


def record(message: str, *args: object, **more: object) -> logging.LogRecord:
    found = logging.LogRecord("proxy.fleet", logging.WARNING, __file__, 1, message, args, None)
    found.__dict__.update(more)
    return found


def test_text_has_the_process_and_the_fields() -> None:
    line = TextLines("proxy").format(record("%s is down", "w", fields={"cause": "no answer"}))
    assert line.endswith('WARNING proxy: w is down cause="no answer"')


def test_json_is_one_line_with_all_parts() -> None:
    try:
        raise ValueError("wrong\nhere")
    except ValueError:
        failed = record("two\nlines", fields={"url": "http://w"}, exc_info=sys.exc_info())
    line = JsonLines("proxy").format(failed)
    assert "\n" not in line
    said = json.loads(line)
    assert said["message"] == "two\nlines" and said["url"] == "http://w"
    assert (said["level"], said["process"], said["logger"]) == ("warning", "proxy", "proxy.fleet")
    assert "ValueError: wrong" in said["exception"]
    assert said["time"].endswith("Z") and len(said["time"]) == len("2026-11-23T03:00:00.000Z")


@pytest.mark.parametrize(
    ("value", "shown"),
    [(7, "7"), ("http://w:1/v1", "http://w:1/v1"), ("", '""'), ('a "b"', '"a \\"b\\""'),
     ("x\nlevel=error", '"x\\nlevel=error"'), ("a=b", '"a=b"')],
)  # fmt: skip
def test_a_value_cannot_break_its_line(value: object, shown: str) -> None:
    assert plain(value) == shown
