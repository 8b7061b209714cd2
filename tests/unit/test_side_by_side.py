"""As many processes of tests as the machine bears; and no test is about its speed."""

import pytest
from hypothesis import settings

from tests.support.side_by_side import MEMORY_OF_ONE, processes

GIGA = 1 << 30


@pytest.mark.parametrize(
    ("cores", "free", "number"),
    [
        (2, 23 * GIGA, 3),
        (2, 4 * GIGA, 2),
        (2, 3 * GIGA, 1),
        (1, 23 * GIGA, 1),
        (8, 64 * GIGA, 12),
        (8, 3 * MEMORY_OF_ONE, 3),
        (2, GIGA, 1),
    ],
)
def test_cores_and_memory_bound_the_processes(cores: int, free: int, number: int) -> None:
    assert processes(cores, free) == number


def test_an_example_may_take_as_long_as_it_takes() -> None:
    assert settings.default is not None and settings.default.deadline is None
