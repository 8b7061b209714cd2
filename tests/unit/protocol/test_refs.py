"""Whether two workers can hand over to each other, by what they say of themselves."""

import pytest

from protocol.refs import compatibility_of, fits


@pytest.mark.parametrize(
    ("one", "other", "fit"),
    [("a", "a", True), ("a", "b", False), ("", "b", True), ("a", "", True), ("", "", True)],
)
def test_workers_fit_if_they_say_the_same_or_nothing(one: str, other: str, fit: bool) -> None:
    assert fits(one, other) is fit


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"triptych": {"compatibility": "a"}}, "a"),
        ({"triptych": {"compatibility": 1}}, ""),
        ({"triptych": ["a"]}, ""),
        ({}, ""),
        (None, ""),
    ],
)
def test_a_handle_says_what_its_reader_must_share_or_nothing(
    params: dict[str, object] | None, said: str
) -> None:
    assert compatibility_of(params) == said
