"""Every way to ask for an output of some form: what it lets through, and what not."""

import json
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from protocol.errors import InvalidRequest
from services.frontend.render import Frontend
from tests.support.chat_templates import TEMPLATES
from tests.support.frontend_helpers import frontend, render, render_prompts, user, write_model

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
GOOD, SPACED = '{"city":"Bern","days":2}', '{ "city": "Bern",\n "days": 2 }'
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
HALT = {"type": "function", "function": {"name": "halt"}}


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Frontend:
    model = write_model("qwen3", tmp_path_factory.mktemp("model"))
    (model / "chat_template.jinja").write_text(TEMPLATES["qwen3_tools"])
    return frontend(model)


def grammar(front: Frontend, **fields: Any) -> str:
    return render(front, user("x"), **fields).generate.sampling.grammar


def takes(front: Frontend, held_to: str, text: str) -> bool:
    """Whether a text is a whole output."""
    tokenizer = LLTokenizer(
        front.tokenizer.serialized(),
        n_vocab=front.info.vocab_size,
        eos_token=list(front.info.eos_token_ids),
    )
    matcher = LLMatcher(tokenizer, held_to)
    assert not matcher.is_error(), matcher.get_error()
    return matcher.consume_tokens(front.tokenizer.encode(text)) and matcher.is_accepting()


def of_schema(**fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"schema": SCHEMA, **fields}}


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


def test_completions_too(front: Frontend) -> None:
    first, second = render_prompts(front, ["a", "b"], guided_regex="x+")
    assert first.generate.sampling.grammar == second.generate.sampling.grammar != ""


def test_what_is_no_chat_needs_no_template(tmp_path: Path) -> None:
    front = frontend(write_model("qwen3", tmp_path), chat_template=None)
    front._chat_text._templates = {"rag": front._chat_text._templates["default"]}
    (rendered,) = render_prompts(front, "a", guided_regex="x+")
    assert rendered.generate.sampling.grammar


def written(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


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


def test_arguments_may_refer_to_definitions(front: Frontend) -> None:
    defined = {
        "type": "object",
        "properties": {"at": {"$ref": "#/$defs/place"}},
        "required": ["at"],
        "$defs": {"place": {"enum": ["here", "there"]}},
    }
    tool = {"type": "function", "function": {"name": "go", "parameters": defined}}
    held_to = grammar(front, tools=[tool], tool_choice="required")
    assert takes(front, held_to, written("go", '{"at": "here"}'))
    assert not takes(front, held_to, written("go", '{"at": "nowhere"}'))


@pytest.mark.parametrize("function", [{}, {"name": 5}, {"name": "f", "parameters": [1]}, "f"])
def test_what_is_no_function_cannot_be_called(function: Any, front: Frontend) -> None:
    with pytest.raises(InvalidRequest) as caught:
        grammar(front, tools=[{"function": function}], tool_choice="required")
    assert caught.value.param == "tool_choice"


def test_a_call_can_be_asked_for_only_where_it_would_be_found(tmp_path: Path) -> None:
    front = frontend(write_model("qwen3", tmp_path))
    with pytest.raises(InvalidRequest) as caught:
        grammar(front, tools=[HALT], tool_choice="required")
    assert (caught.value.param, caught.value.code) == ("tool_choice", "unsupported_field")
