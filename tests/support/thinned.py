"""Combinations of parameters, of which most run only with `-m slow`."""

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Any

import pytest


def thinned(combinations: Iterable[Sequence[Any]], kept: Callable[..., bool]) -> list[Any]:
    """For `parametrize`: all combinations, those that `kept` does not say yes to marked slow."""
    return [
        pytest.param(*one, marks=() if kept(*one) else pytest.mark.slow) for one in combinations
    ]


def diagonal(*values: Sequence[Any]) -> list[Any]:
    """All combinations of values; not slow are as many as the longest list has, in which each value
    of each list occurs."""
    longest = max(map(len, values))
    kept = {tuple(one[i % len(one)] for one in values) for i in range(longest)}
    return thinned(product(*values), lambda *one: one in kept)
