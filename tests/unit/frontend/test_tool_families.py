"""Each family of models writes tool calls in a form of its own, and all are heard."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.frontend.parsing.reading import (
    TOOL_ALIASES,
    TOOL_FORMATS,
    TOOL_NAMES,
    Reading,
    Thinking,
    tool_format,
)
from tests.support.tool_readers import BERN, CITY, STOP, TOOLS, Told, hear, read

BOB = '{"name": "Bob", "parameters": {"age": 5}} x'
GEMMA = '{"city": "B \\"e\\" <n>", "days": 2, "at": [1, {"a": "x"}]}'
FORMS: dict[str, list[tuple[str, Told]]] = {
    "qwen3_coder": [
        (
            "Well.\n<tool_call>\n<function=weather>\n<parameter=city>\n</tool_call> \"x\"\ny\n"
            "</parameter>\n<parameter=days>\n2\n</parameter>\n<parameter=wet>\nTrue\n</parameter>\n"
            "</function>\n</tool_call>\n<tool_call>\n<function=halt>\n</function>\n</tool_call>",
            (
                "Well.",
                [
                    ("weather", '{"city": "</tool_call> \\"x\\"\\ny", "days": 2, "wet": true}'),
                    STOP,
                ],
            ),
        ),
        ("<function=halt>\n</function> ok", ("ok", [STOP])),
        ("<tool_call>\n<functional>", ("<tool_call>\n<functional>", [])),
        (
            "<tool_call><function=weather><parameter=city>Be",
            ("", [("weather", '{"city": "Be')]),
        ),
    ],
    "llama3_json": [
        ('{"name": "weather", "parameters": {"city": "Bern"}}', ("", [("weather", CITY)])),
        (
            ' {"name": "weather", "parameters": {"city": "Bern"}}; {"name": "halt"}',
            ("", [("weather", CITY), STOP]),
        ),
        (BOB, (BOB, [])),
        ('{"age": 5}', ('{"age": 5}', [])),
        (
            'So: <|python_tag|>{"name": "weather", "arguments": {"city": "Bern"}}',
            ("So:", [("weather", CITY)]),
        ),
        (
            "<|python_tag|>brave_search.call(query=\"it's (5)\")",
            ("", [("brave_search", '{"query":"it\'s (5)"}')]),
        ),
        ("<|python_tag|>print(5)", ("<|python_tag|>print(5)", [])),
        ("Say { or }", ("Say { or }", [])),
    ],
    "mistral": [
        (
            '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Bern"}, "id": "a"}, '
            '{"name": "halt", "arguments": {}}]',
            ("", [("weather", CITY), STOP]),
        ),
        ('Hm [TOOL_CALLS]weather[ARGS]{"city": "Bern"}[TOOL_CALLS]halt[ARGS]{}',
         ("Hm", [("weather", CITY), STOP])),
        ('[TOOL_CALLS]weather[CALL_ID]VvvODy9mT[ARGS]{"city": "Bern"}', ("", [("weather", CITY)])),
        ("[TOOL_CALLS] none", ("[TOOL_CALLS] none", [])),
    ],
    "glm45": [
        (
            "a <tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Be</tool_call>rn"
            "</arg_value>\n<arg_key>at</arg_key>\n<arg_value>[1, 2]</arg_value>\n</tool_call>",
            ("a", [("weather", '{"city": "Be</tool_call>rn", "at": [1, 2]}')]),
        ),
        ("<tool_call>halt</tool_call>", ("", [STOP])),
        ("<tool_call>halt\n</tool_call>\n<tool_call>halt</tool_call>", ("", [STOP, STOP])),
        ("a <tool_call>b c", ("a <tool_call>b c", [])),
    ],
    "glm47": [
        (
            "a<tool_call>weather<arg_key>city</arg_key><arg_value>Bern</arg_value></tool_call>"
            "<tool_call>halt</tool_call>",
            ("a", [("weather", CITY), STOP]),
        ),
    ],
    "deepseek_v3": [
        (
            "a<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
            '{"city": "Bern"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function'
            "<｜tool▁sep｜>halt\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            ("a", [("weather", CITY), STOP]),
        ),
        (
            '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Bern"}'
            "<｜tool▁call▁end｜><｜tool▁call▁begin｜>halt<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
            "<｜tool▁calls▁end｜>",
            ("", [("weather", CITY), STOP]),
        ),
        ("<｜tool▁call▁begin｜>no", ("<｜tool▁call▁begin｜>no", [])),
    ],
    "deepseek_v32": [
        (
            'a<｜DSML｜function_calls>\n<｜DSML｜invoke name="weather">\n'
            '<｜DSML｜parameter name="city" string="true">B "e" <n></｜DSML｜parameter>\n'
            '<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n'
            '<｜DSML｜parameter name="at">[1,{"a":"x"}]'
            "</｜DSML｜parameter>\n</｜DSML｜invoke>\n"
            '<｜DSML｜invoke name="halt">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
            ("a", [("weather", '{"city": "B \\"e\\" <n>", "days": 2, "at": [1,{"a":"x"}]}'), STOP]),
        ),
        ('<｜DSML｜invoke name="a b">', ('<｜DSML｜invoke name="a b">', [])),
    ],
    "deepseek_v4": [
        (
            '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="weather">\n<｜DSML｜parameter name="city"'
            ' string="true">Bern</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
            ("", [("weather", CITY)]),
        ),
    ],
    "gemma4": [
        (
            'a<|tool_call>call:weather{city:<|"|>B "e" <n><|"|>,days:2,at:[1,{a:<|"|>x<|"|>}]}'
            "<tool_call|><|tool_call>call:halt{}<tool_call|>",
            ("a", [("weather", GEMMA), STOP]),
        ),
        ("<|tool_call>cal", ("<|tool_call>cal", [])),
    ],
    "functiongemma": [
        (
            "<start_function_call>call:weather{city:<escape>Bern<escape>}<end_function_call>",
            ("", [("weather", CITY)]),
        ),
    ],
    "openai": [
        (
            "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
            '{"city": "Bern"}<|call|>',
            ("", [("weather", CITY)]),
        ),
        (
            "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary"
            " to=functions.halt<|channel|>commentary <|constrain|>json<|message|>{}<|call|>",
            ("I look.", [STOP]),
        ),
        ("<|channel|>final<|message|>Bern. ", ("Bern. ", [])),
        ('{"no": "channels"}', ('{"no": "channels"}', [])),
    ],
}  # fmt: skip
CASES = [(name, text, told) for name, cases in FORMS.items() for text, told in cases]


@pytest.mark.parametrize(("name", "text", "told"), CASES)
def test_every_family_is_heard(name: str, text: str, told: Told) -> None:
    form = TOOL_FORMATS[name]
    assert hear([text], form=form) == told
    assert hear(list(text), form=form) == told
    for _, arguments in told[1]:
        assert "\n" not in arguments  # JSON has none in its strings


def test_a_call_has_a_name_that_its_template_takes_back() -> None:
    for name, length in (("hermes", 29), ("mistral", 9), ("mistral_list", 9)):
        reader = Reading(TOOL_FORMATS[name](TOOLS), most=9).reader()
        assert reader is not None
        text = BERN if name == "hermes" else '[TOOL_CALLS]weather[ARGS]{"city": "Bern"}'
        (call,) = reader.last(text).calls
        assert len(call.id) == length and (length == 29 or call.id.isalnum())


@pytest.mark.parametrize("name", sorted(TOOL_ALIASES))
def test_vllms_other_names_are_the_same_forms(name: str) -> None:
    """As vLLM describes them."""
    said = {
        "llama4_json": '{"name": "weather", "parameters": {"city": "Bern"}}',
        "qwen3_json": '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n'
        "</tool_call>",
    }
    xml = (
        "<tool_call>\n<function=weather>\n<parameter=city>Bern</parameter>\n</function>\n"
        "</tool_call>"
    )
    form = tool_format(name, "")
    assert form is not None and name in TOOL_NAMES
    assert hear([said.get(name, xml)], form=form) == ("", [("weather", CITY)])


FRAGMENTS = st.sampled_from(
    sorted(
        {
            *(mark for form in TOOL_FORMATS.values() for mark in form.marks),
            '{"name": "f"}', '{"name": "', '\\"', '"}', "<", "tool_", "call>", " ", "\n", "é",
            "text", BERN, "f", "{", "}", "[", "]", ",", ";", "call:", "```json", "<function=f>",
            "<parameter=city>", "</parameter>", "a" * 300, "<think>", "</think>", "<|python_tag|>",
            "to=functions.f", '<｜DSML｜invoke name="f">', '<｜DSML｜parameter name="city"',
            ' string="true">', "</｜DSML｜parameter>",
        }
    )
)  # fmt: skip
WHOLE = st.sampled_from([text for _, text, _ in CASES])


@given(
    st.sampled_from(sorted(TOOL_FORMATS)),
    st.lists(FRAGMENTS | WHOLE, max_size=12),
    st.lists(st.integers(0, 300), max_size=12),
    st.booleans(),
)
@settings(deadline=None, max_examples=130)
def test_pieces_do_not_matter(
    name: str, fragments: list[str], cuts: list[int], inside: bool
) -> None:
    """A whole answer is the stream, joined."""
    text = "".join(fragments)
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[a:b] for a, b in pairwise(places)]
    reading = Reading(TOOL_FORMATS[name](TOOLS), Thinking(), inside=inside, most=9)
    whole = read(reading, [text])
    assert read(reading, pieces) == whole and read(reading, list(text)) == whole
