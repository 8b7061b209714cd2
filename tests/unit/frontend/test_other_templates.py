"""Templates that requests bring, asked for by several threads at once."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import FrameType
from typing import Any

from services.frontend.prompts.other_templates import _KEPT, RequestTemplates


@contextmanager
def interrupted(templates: RequestTemplates) -> Iterator[list[int]]:
    """Before each line of `get` at which this thread can be overtaken, another one asks for as many
    templates as are kept. Gives the lines."""
    lines: list[int] = []

    def ask() -> None:
        for number in range(_KEPT):
            templates.get(f"other {number}")

    def at(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code is not RequestTemplates.get.__code__:
            return None
        # Within the lock the other one would wait for this thread.
        if event == "line" and not templates._lock.locked():
            lines.append(frame.f_lineno)
            others.submit(ask).result(20)
        return at

    before = sys.gettrace()
    with ThreadPoolExecutor(1) as others:
        sys.settrace(at)
        try:
            yield lines
        finally:
            sys.settrace(before)


def test_a_thread_may_put_another_ones_template_out() -> None:
    templates = RequestTemplates({}, trusted=True)
    with interrupted(templates) as lines:
        made = templates.get("mine")
        assert made.source == "mine" and lines
    kept = templates.get("mine")
    with interrupted(templates):
        assert templates.get("mine").source == kept.source
    assert len(templates._compiled) == _KEPT


def test_a_template_that_is_used_stays() -> None:
    templates = RequestTemplates({}, trusted=True)
    first = templates.get("first")
    for number in range(2 * _KEPT):
        templates.get(f"{number}")
        assert templates.get("first") is first
