"""Every way to ask for an output of some form: what it lets through, and what not."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from protocol.errors import InvalidRequest
from services.frontend.grammars.requested import forced_call
from services.frontend.parsing.reading import TOOL_FORMATS, Reading
from services.frontend.render import Frontend
from services.frontend.tool_use import tool_use
from tests.support.frontend_helpers import chat, frontend, render, render_prompts, user, write_model
from tests.support.grammars import (
    HALT,
    SCHEMA,
    WEATHER,
    front_with_tools,
    grammar,
    of_schema,
    takes,
    written,
)

GOOD, SPACED = '{"city":"Bern","days":2}', '{ "city": "Bern",\n "days": 2 }'


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Frontend:
    return front_with_tools(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize(
    ("fields", "good", "bad"),
    [
        ({"response_format": of_schema(name="w", strict=True)}, [GOOD, SPACED], ["{}", "x", "[]"]),
        ({"response_format": {"type": "json_object"}}, ["{}", GOOD], ["[]", "1", ""]),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, [GOOD], ["{}"]),
        ({"structured_outputs": {"json": SCHEMA}}, [GOOD, SPACED], ["{}"]),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, [GOOD], ["{}"]),
        ({"structured_outputs": {"json": True}}, ["5", "[]", GOOD], ["x"]),
        (
            {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
            [GOOD],
            [SPACED],
        ),
        ({"structured_outputs": {"json_object": True}}, ["{}"], ["[]"]),
        ({"structured_outputs": {"regex": "[ab]+c?"}}, ["ab", "ac"], ["c", "abd", ""]),
        ({"structured_outputs": {"choice": ['a"b\\', "é🙂\n"]}}, ['a"b\\', "é🙂\n"], ["a", "é"]),
        ({"structured_outputs": {"grammar": 'start: "x" "y"*'}}, ["x", "xyy"], ["y"]),
        ({"structured_outputs": {"grammar": 'root ::= "x" | "y"'}}, ["x", "y"], ["xy"]),
        ({"guided_json": SCHEMA}, [GOOD], ["{}"]),
        ({"guided_regex": "a|b"}, ["a"], ["c"]),
        ({"guided_choice": ["yes", "no"]}, ["yes", "no"], ["y", "maybe"]),
        ({"guided_grammar": 'start: "x"'}, ["x"], ["y"]),
        ({"guided_json": SCHEMA, "tools": [HALT], "tool_choice": "none"}, [GOOD], ["{}"]),
    ],
)
def test_what_is_asked_for_is_let_through(
    fields: dict[str, Any], good: list[str], bad: list[str], front: Frontend
) -> None:
    held_to = grammar(front, **fields)
    assert [takes(front, held_to, text) for text in good] == [True] * len(good)
    assert [takes(front, held_to, text) for text in bad] == [False] * len(bad)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": {"type": "text"}},
        {"response_format": None, "guided_json": None, "structured_outputs": {}},
        {"tools": [HALT], "tool_choice": "auto"},
    ],
)
def test_else_the_output_is_free(fields: dict[str, Any], front: Frontend) -> None:
    assert grammar(front, **fields) == ""


def test_one_of_many_choices_is_let_through(front: Frontend) -> None:
    choices = ["", *(f"v{i}" for i in range(3000))]
    held_to = grammar(front, structured_outputs={"choice": choices})
    assert all(takes(front, held_to, text) for text in ("", "v0", "v299", "v2999"))
    assert not takes(front, held_to, "v3000") and not takes(front, held_to, "v")


def test_completions_too(front: Frontend) -> None:
    first, second = render_prompts(front, ["a", "b"], guided_regex="x+")
    assert first.generate.sampling.grammar == second.generate.sampling.grammar != ""


def test_what_is_no_chat_needs_no_template(tmp_path: Path) -> None:
    front = frontend(write_model("qwen3", tmp_path), chat_template=None)
    front._chat_text._templates = {"rag": front._chat_text._templates["default"]}
    (rendered,) = render_prompts(front, "a", guided_regex="x+")
    assert rendered.generate.sampling.grammar


def test_a_call_can_be_asked_for(front: Frontend) -> None:
    both = {"tools": [WEATHER, HALT]}
    weather, halt = written("weather", GOOD), written("halt", "{}")
    anyone = grammar(front, **both, tool_choice="required")
    assert takes(front, anyone, weather) and takes(front, anyone, f"{halt}\n{weather}")
    assert not takes(front, anyone, "Hello") and not takes(front, anyone, written("stop", "{}"))
    assert not takes(front, anyone, written("weather", '{"city": 1, "days": 2}'))
    alone = grammar(front, **both, tool_choice="required", parallel_tool_calls=False)
    assert takes(front, alone, halt) and not takes(front, alone, f"{halt}\n{weather}")
    named = {"type": "function", "function": {"name": "weather"}}
    one = grammar(front, **both, tool_choice=named)
    assert takes(front, one, weather) and not takes(front, one, halt)
    assert not takes(front, one, f"{weather}\n{weather}")


WRITTEN = {
    "hermes": written("weather", '{"city": "Bern", "days": 2}'),
    "qwen3_coder": '<tool_call>\n<function=weather>\n<parameter=city>\nBe"rn\n</parameter>\n'
    "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
    "llama3_json": '{"name": "weather", "parameters": {"city": "Bern", "days": 2}}',
    "mistral": '[TOOL_CALLS]weather[ARGS]{"city": "Bern", "days": 2}',
    "mistral_list": '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Bern", "days": 2}}]',
    "glm45": "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Bern</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
    "glm47": "<tool_call>weather<arg_key>city</arg_key><arg_value>Bern</arg_value>"
    "<arg_key>days</arg_key><arg_value>2</arg_value></tool_call>",
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n"
    '```json\n{"city": "Bern", "days": 2}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "deepseek_v31": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>"
    '{"city": "Bern", "days": 2}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "deepseek_v32": '<｜DSML｜function_calls>\n<｜DSML｜invoke name="weather">\n'
    '<｜DSML｜parameter name="city" string="true">Be</b>rn</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
    "deepseek_v4": '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="weather">\n'
    '<｜DSML｜parameter name="city" string="true">Bern</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
    "gemma4": '<|tool_call>call:weather{city:<|"|>Bern<|"|>,days:2}<tool_call|>',
    "functiongemma": "<start_function_call>call:weather{city:<escape>Bern<escape>,days:2}"
    "<end_function_call>",
    "openai": "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
    '{"city": "Bern", "days": 2}',
}
CITY_ALONE = {
    "qwen3_coder": "<tool_call>\n<function=weather>\n<parameter=city>\n{}\n</parameter>\n"
    "</function>\n</tool_call>",
    "glm45": "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>{}</arg_value>\n</tool_call>",
    "glm47": "<tool_call>weather<arg_key>city</arg_key><arg_value>{}</arg_value></tool_call>",
    "deepseek_v32": '<｜DSML｜function_calls>\n<｜DSML｜invoke name="weather">\n'
    '<｜DSML｜parameter name="city" string="true">{}</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
    "gemma4": '<|tool_call>call:weather{{city:<|"|>{}<|"|>}}<tool_call|>',
}


@pytest.mark.parametrize("name", sorted(TOOL_FORMATS))
def test_a_call_can_be_forced_in_every_form(name: str, front: Frontend) -> None:
    """What the grammar lets through is heard as the call that it is."""
    form, tools = TOOL_FORMATS[name], [WEATHER, HALT]
    use = tool_use(chat(tools=tools, tool_choice="required", parallel_tool_calls=False))
    held_to = forced_call(use, form, front.tokenizer)
    text = WRITTEN[name]
    assert takes(front, held_to, text)
    assert not takes(front, held_to, "Hello") and not takes(front, held_to, text[:-2])
    assert not takes(front, held_to, text.replace("weather", "whether"))
    assert not takes(front, held_to, text.replace("2", '"x"'))
    functions = {function.name: function for function in use.functions}
    reader = Reading(form(functions), most=1, only=True).reader()
    assert reader is not None
    (call,) = reader.last(text).calls
    assert call.name == "weather" and json.loads(call.arguments)["days"] == 2


@pytest.mark.parametrize("kind", [{}, {"type": "string"}])
@pytest.mark.parametrize("count", [65, 3000])
@pytest.mark.parametrize("name", ["qwen3_coder", "glm45", "glm47", "deepseek_v32", "gemma4"])
def test_many_constants_are_enforced_too(
    name: str, count: int, kind: dict[str, Any], front: Frontend
) -> None:
    cities = {**kind, "enum": ["Bern", *(f"v{i}" for i in range(1, count))]}
    parameters = {"type": "object", "properties": {"city": cities}, "required": ["city"]}
    tool = {"type": "function", "function": {"name": "weather", "parameters": parameters}}
    use = tool_use(chat(tools=[tool], tool_choice="required", parallel_tool_calls=False))
    held_to = forced_call(use, TOOL_FORMATS[name], front.tokenizer)
    alone = CITY_ALONE[name]
    functions = {function.name: function for function in use.functions}
    for city in (cities["enum"][0], cities["enum"][-1]):
        text = alone.format(city)
        assert takes(front, held_to, text)
        reader = Reading(TOOL_FORMATS[name](functions), most=1, only=True).reader()
        assert reader is not None
        assert json.loads(reader.last(text).calls[0].arguments) == {"city": city}
    for wrong in ("Basel", '"Basel"', f"v{count}"):
        assert not takes(front, held_to, alone.format(wrong))


def test_dsml_can_be_forced_where_its_mark_is_one_token(tmp_path: Path) -> None:
    model = write_model("qwen3", tmp_path, vocab_size=512)
    tokenizer = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.add_special_tokens(["｜DSML｜"])
    tokenizer.save(str(model / "tokenizer.json"))
    front = frontend(model)
    assert front.tokenizer.id("｜DSML｜") is not None
    use = tool_use(chat(tools=[WEATHER], tool_choice="required", parallel_tool_calls=False))
    for name in ("deepseek_v32", "deepseek_v4"):
        held_to = forced_call(use, TOOL_FORMATS[name], front.tokenizer)
        text = WRITTEN[name]
        assert takes(front, held_to, text) and not takes(front, held_to, text.replace("2", "x", 2))
        assert not takes(front, held_to, text[:-2])


def test_reasoning_comes_before_what_is_held_to_a_form(tmp_path: Path) -> None:
    """Where the prompt opens it; and the head of a message, where every message has one."""
    model = write_model("qwen3", tmp_path)
    for template, opening in (
        ("{{ messages[0].content }}<think>\n{# </think> #}", "Hm.\n</think>\n\n"),
        ("{{ messages[0].content }}{# <|start|><|channel|> #}", "<|channel|>final<|message|>"),
    ):
        (model / "chat_template.jinja").write_text(template)
        front = frontend(model)
        rendered = render(front, user("x"), response_format=of_schema())
        held_to = rendered.generate.sampling.grammar
        assert takes(front, held_to, opening + GOOD)
        assert not takes(front, held_to, GOOD) and not takes(front, held_to, opening + "{}")
        reader = rendered.output.reading.reader()
        assert reader is not None and reader.last(opening + GOOD).text == GOOD


def test_a_call_can_be_asked_for_only_where_it_would_be_found(tmp_path: Path) -> None:
    front = frontend(write_model("qwen3", tmp_path))
    with pytest.raises(InvalidRequest) as caught:
        grammar(front, tools=[HALT], tool_choice="required")
    assert (caught.value.param, caught.value.code) == ("tool_choice", "unsupported_field")
