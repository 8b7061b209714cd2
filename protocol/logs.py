"""The log lines of every process: one format, as text or as JSON, on standard error."""

from __future__ import annotations

import logging
import re
import time
from typing import Any

import msgspec

logger = logging.getLogger(__name__)
_UNQUOTED = re.compile(r"[\w./:,;+@~-]+", re.ASCII).fullmatch
_FIELDS = "fields"  # the attribute of a record that has a line's parts


def configure_logging(process: str, level: str, form: str) -> None:
    """Log lines of this process, `process` named in each."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines(process) if form == "json" else TextLines(process))
    logging.basicConfig(level=level.upper(), handlers=[handler])


def set_log_level(level: str) -> str:
    """Write lines from `level` on in this process; the level before."""
    root = logging.getLogger()
    before = logging.getLevelName(root.level).lower()
    root.setLevel(level.upper())
    logger.warning("the log level is %s; it was %s", level, before)
    return before


class TextLines(logging.Formatter):
    """`2026-11-23 03:00:00,000 INFO proxy: message`; `fields` follow the message."""

    def __init__(self, process: str) -> None:
        super().__init__(f"%(asctime)s %(levelname)s {process}: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        return super().formatMessage(record) + "".join(
            f" {name}={plain(value)}" for name, value in fields_of(record).items()
        )


class JsonLines(logging.Formatter):
    """One JSON object a line: time (UTC), level, process, logger, message, and the record's
    `fields`; `exception` where there is one."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self.converter = time.gmtime
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "message": record.getMessage(),
            **fields_of(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def worker_line(
    logger: logging.Logger, level: int, event: str, role: str, url: str, cause: str = ""
) -> None:
    """`worker EVENT role=… url=… cause=…`: the same words in every process."""
    fields = {"role": role, "url": url} | ({"cause": cause} if cause else {})
    logger.log(level, "worker %s", event, extra={"fields": fields})


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """What a line says beside its message, given as `extra={"fields": {…}}`."""
    found: dict[str, Any] = getattr(record, _FIELDS, {})
    return found


def plain(value: object) -> str:
    """A value as text: quoted where blanks, quotes or control characters would break the line."""
    text = str(value)
    return text if _UNQUOTED(text) else msgspec.json.encode(text).decode()
