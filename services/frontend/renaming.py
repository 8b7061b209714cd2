"""Errors of a chat by the names that its fields have in the request it was made of."""

from __future__ import annotations

import re
from collections.abc import Iterable

from protocol.errors import InvalidRequest

Renaming = tuple[re.Pattern[str], str]
"""A chat's field, and what stands for it; matched at the start of a field's path."""


def renaming(*names: tuple[str, str]) -> tuple[Renaming, ...]:
    """`names`: regular expressions, and replacements as `re.sub` takes them."""
    return tuple((re.compile(chat), other) for chat, other in names)


def renamed(error: InvalidRequest, names: Iterable[Renaming]) -> InvalidRequest:
    """The same error; its text begins with the field too, where it names it."""
    for pattern, other in names:
        if error.param is not None and pattern.match(error.param):
            error.param = pattern.sub(other, error.param, count=1)
            if pattern.match(error.message):
                error.message = pattern.sub(other, error.message, count=1)
            break
    return error
