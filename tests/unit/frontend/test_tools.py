"""Tool calls leave the text and become OpenAI's, however the text is cut into pieces."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.frontend.parsing.json_call import CLOSE, OPEN, Hermes
from services.frontend.parsing.reading import TOOL_FORMATS, Reading, Thinking
from tests.support.tool_readers import BERN, STOP, TOOLS, Told, hear, of, read

HALT = '<tool_call>{"name": "halt"}</tool_call>'
DEEP = '<tool_call>{"name": "f", "arguments": ' + "[" * 5000 + "</tool_call>"
WEATHER = ("weather", '{"city": "Bern", "at": [1, 2.50]}')


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", ("", [])),
        ("no call \n", ("no call \n", [])),
        (BERN, ("", [WEATHER])),
        (f"Let me see.\n\n{BERN}\n{HALT}\n", ("Let me see.", [WEATHER, STOP])),
        (f"a {HALT} b", ("a b", [STOP])),
        (BERN[: -len("</tool_call>")], ("", [WEATHER])),
        (f"a\n{BERN[:-20]}", ("a", [("weather", '{"city": "Bern", "at": [1, ')])),
        (f"a\n{BERN[:28]}", (f"a\n{BERN[:28]}", [])),
        (f"{BERN[: -len(CLOSE)]}{HALT}", ("", [WEATHER, STOP])),
        (f"{OPEN}{WEATHER[1]}{CLOSE}", (f"{OPEN}{WEATHER[1]}{CLOSE}", [])),
        ('<tool_call>{"arguments": {"a": 1}, "name": "f"}}</tool_call>', ("", [("f", '{"a": 1}')])),
        ('<tool_call>{"name": "f", "arguments": {"a": }</tool_call>x', ("x", [("f", '{"a": }')])),
        ("a\n<tool_call>\nno\n</tool_call> x", ("a\n<tool_call>\nno\n</tool_call> x", [])),
        ('<tool_call>{"name": 5}</tool_call>', ('<tool_call>{"name": 5}</tool_call>', [])),
        ("<tool_call><function=f></tool_call>", ("<tool_call><function=f></tool_call>", [])),
        (
            '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>',
            ("", [("f", '{"a": 1}')]),
        ),
        ("</tool_call> <tool_cal", ("</tool_call> <tool_cal", [])),
        ("1 < 2 <to", ("1 < 2 <to", [])),
        (f"{HALT}\n", ("", [STOP])),
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
        (f"{OPEN}{QUOTING}{CLOSE}{HALT}", ("", [("f", ARGUMENTS), STOP])),
        (f"{OPEN}{QUOTING}", ("", [("f", ARGUMENTS)])),
        # A quotation mark too many: the call is none, and what follows is as it would have been.
        (f'{OPEN}{{"name": "f}}{CLOSE} b {HALT}', (f'{OPEN}{{"name": "f}}{CLOSE} b', [STOP])),
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
    assert hear([f"{HALT}\n{BERN[:cut]}"], only=True)[1][0] == STOP


def test_arguments_are_told_as_they_come() -> None:
    reader = Reading(Hermes(TOOLS), most=9).reader()
    assert reader is not None
    told = [reader.push(char).calls for char in BERN]
    begun = BERN.index("{", BERN.index("arguments"))
    assert not any(told[:begun])
    pieces = [calls[0].arguments for calls in told[begun:] if calls]
    assert len(pieces) == len(WEATHER[1]) and "".join(pieces) == WEATHER[1]


def test_calls_beyond_the_most_are_dropped() -> None:
    assert hear([BERN + HALT + HALT, BERN], most=2)[1] == [WEATHER, STOP]
    assert hear([f"x{BERN}", HALT], most=1) == ("x", [WEATHER])


def test_reasoning_leaves_the_text() -> None:
    thinks = Reading(thinking=Thinking())
    for text, reasoning, answer in (
        ("<think>\nSo.\n\nYes.\n</think>\n\nBern. ", "So.\n\nYes.", "Bern. "),
        ("\n<think></think>Bern", "", "Bern"),
        ("<think>So", "So", ""),
        (" Bern <think>no</think>", "", " Bern <think>no</think>"),
        ("<thin", "", "<thin"),
    ):
        for pieces in ([text], list(text)):
            assert read(thinks, pieces) == of(answer, reasoning)
    opened = Reading(Hermes(TOOLS), Thinking(), inside=True, most=9)
    heard = read(opened, list(f"So.\n</think>\n\n{HALT}"))
    assert (heard.reasoning, heard.text, len(heard.calls)) == ("So.", "", 1)
    channels = (
        "<|channel|>analysis<|message|>So.<|end|><|start|>assistant<|channel|>final<|message|>A"
    )
    assert read(Reading(TOOL_FORMATS["openai"]()), list(channels)) == of("A", "So.")


def test_where_a_prompt_opens_the_reasoning() -> None:
    assert Thinking().is_open("<|im_start|>assistant\n<think>\n")
    assert not Thinking().is_open("<|im_start|>assistant\n<think>\n\n</think>\n\n")


@given(st.text(max_size=40), st.text(max_size=40))
@settings(deadline=None)
def test_any_string_comes_through(city: str, extra: str) -> None:
    arguments = json.dumps({"city": city, "x": [extra]})
    said = f'{OPEN}{{"name": "weather", "arguments": {arguments}}}{CLOSE}'
    assert hear(list(said)) == ("", [("weather", arguments)])
    if "</parameter>" not in city:
        said = f"<function=weather>\n<parameter=city>\n{city}\n</parameter>\n</function>"
        ((_, heard),) = hear(list(said), form=TOOL_FORMATS["qwen3_coder"])[1]
        assert json.loads(heard) == {"city": city}
