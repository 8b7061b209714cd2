"""Tool calls leave the text and become OpenAI's, however the text is cut into pieces."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.frontend.tools import CLOSE, OPEN, Heard, ToolCalls

BERN = (
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern", "at": [1, 2.50]}}\n</tool_call>'
)
HALT = '<tool_call>{"name": "halt"}</tool_call>'
DEEP = '<tool_call>{"name": "f", "arguments": ' + "[" * 5000 + "</tool_call>"
Told = tuple[str, list[tuple[str, str]]]


def hear(pieces: Sequence[str], most: int = 9, *, only: bool = False) -> Told:
    """The text, and name and arguments of each call."""
    tools = ToolCalls(most, only=only)
    heard = [*map(tools.push, pieces), tools.flush(), tools.flush()]
    assert heard[-1] == Heard("")
    calls = [call for h in heard for call in h.calls]
    assert len({call.id for call in calls}) == len(calls)
    return "".join(h.text for h in heard), [(c.function.name, c.function.arguments) for c in calls]


WEATHER = ("weather", '{"city": "Bern", "at": [1, 2.50]}')


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", ("", [])),
        ("no call \n", ("no call \n", [])),
        (BERN, ("", [WEATHER])),
        (f"Let me see.\n\n{BERN}\n{HALT}\n", ("Let me see.", [WEATHER, ("halt", "{}")])),
        (f"a {HALT} b", ("a b", [("halt", "{}")])),
        (BERN[: -len("</tool_call>")], ("", [WEATHER])),
        (f"a\n{BERN[:-20]}", (f"a\n{BERN[:-20]}", [])),
        ("a\n<tool_call>\nno\n</tool_call> x", ("a\n<tool_call>\nno\n</tool_call> x", [])),
        ('<tool_call>{"name": 5}</tool_call>', ('<tool_call>{"name": 5}</tool_call>', [])),
        ("<tool_call><function=f></tool_call>", ("<tool_call><function=f></tool_call>", [])),
        (
            '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>',
            ("", [("f", '{"a": 1}')]),
        ),
        ("</tool_call> <tool_cal", ("</tool_call> <tool_cal", [])),
        ("1 < 2 <to", ("1 < 2 <to", [])),
        (f"{HALT}\n", ("", [("halt", "{}")])),
        (DEEP, (DEEP, [])),
    ],
)
def test_what_is_heard(text: str, told: Told) -> None:
    assert hear([text]) == told
    assert hear(list(text)) == told


ARGUMENTS = r'{"a": "x</tool_call> \\\" y</tool_call>"}'
QUOTING = f'{{"name": "f", "arguments": {ARGUMENTS}}}'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"a {OPEN}{QUOTING}{CLOSE} b", ("a b", [("f", ARGUMENTS)])),
        (f"{OPEN}{QUOTING}{CLOSE}{HALT}", ("", [("f", ARGUMENTS), ("halt", "{}")])),
        (f"{OPEN}{QUOTING}", ("", [("f", ARGUMENTS)])),
        # A quotation mark too many: the call is none, and what follows is as it would have been.
        (
            f'{OPEN}{{"name": "f}}{CLOSE} b {HALT}',
            (f'{OPEN}{{"name": "f}}{CLOSE} b', [("halt", "{}")]),
        ),
    ],
)
def test_a_mark_inside_a_string_ends_no_call(text: str, told: Told) -> None:
    assert hear([text]) == told
    assert hear(list(text)) == told


@pytest.mark.parametrize("cut", range(1, len(BERN)))
def test_a_call_that_was_to_be_and_was_cut_is_no_text(cut: int) -> None:
    """Nor is one that follows a whole one."""
    assert hear([BERN[:cut]], only=True)[0] == ""
    assert hear(list(HALT + BERN[:cut]), only=True)[0] == ""
    assert hear([f"{HALT}\n{BERN[:cut]}"], only=True)[1][0] == ("halt", "{}")


def test_calls_beyond_the_most_are_dropped() -> None:
    assert hear([BERN + HALT + HALT, BERN], most=2)[1] == [WEATHER, ("halt", "{}")]
    assert hear([f"x{BERN}", HALT], most=1) == ("x", [WEATHER])


FRAGMENTS = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        '{"name": "f"}',
        '{"name": "',
        '\\"',
        '"}',
        "<",
        "tool_",
        "call>",
        " ",
        "\n",
        "é",
        "text",
        BERN,
    ]
)


@given(st.lists(FRAGMENTS, max_size=12), st.lists(st.integers(0, 200), max_size=12))
@settings(deadline=None)
def test_pieces_do_not_matter(fragments: list[str], cuts: list[int]) -> None:
    text = "".join(fragments)
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[a:b] for a, b in pairwise(places)]
    assert hear(pieces) == hear([text])
