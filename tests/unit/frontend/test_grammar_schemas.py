"""Schemas that are odd, too long or beyond what can be enforced: written, ignored or refused."""

import json
from typing import Any

import pytest

from protocol.errors import InvalidRequest
from services.frontend.grammars import json_schema
from services.frontend.grammars.json_schema import check_grammar
from services.frontend.grammars.requested import forced_call
from services.frontend.parsing.reading import TOOL_FORMATS
from services.frontend.render import Frontend
from services.frontend.tool_use import tool_use
from tests.support.frontend_helpers import chat
from tests.support.grammars import SCHEMA, front_with_tools, grammar, of_schema, takes


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Frontend:
    return front_with_tools(tmp_path_factory.mktemp("model"))


DEEP: dict[str, Any] = {"type": "object"}
for _ in range(400):
    DEEP = {"type": "object", "properties": {"x": DEEP}}
ODD: list[dict[str, Any]] = [
    {"properties": 5},
    {"type": "object", "properties": {"a": True, "b": {"type": ["string", "null"]}}},
    {"type": "object", "properties": {"a": {"enum": 5}}, "required": 5},
    {"type": "object", "properties": {"a": {"type": "array", "items": [1]}}, "required": [{}]},
    {"type": "object", "properties": {"a": {"type": {}}, 'b"\n>': {"const": None}}},
    {"$ref": "#/$defs/a", "$defs": 5},
    {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/n0"}},
        "$defs": {  # 2^60 values, if every reference were followed each time
            f"n{i}": {"anyOf": [{"$ref": f"#/$defs/n{i + 1}"}, {"$ref": f"#/$defs/n{i + 1}"}]}
            for i in range(60)
        },
    },
    DEEP,
]


@pytest.mark.parametrize("name", sorted(TOOL_FORMATS))
def test_an_odd_schema_is_written_or_refused(name: str, front: Frontend) -> None:
    for schema in ODD:
        tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
        use = tool_use(chat(tools=[tool], tool_choice="required"))
        try:
            check_grammar(forced_call(use, TOOL_FORMATS[name], front.tokenizer), "tools", "tools")
        except InvalidRequest as error:
            assert error.param == "tools"


PYDANTIC = {
    "type": "object",
    "properties": {
        "secret": {"type": "string", "format": "password", "writeOnly": True},
        "file": {"anyOf": [{"type": "string", "format": "path"}, {"type": "null"}]},
        "format": {"$ref": "#/$defs/Kind"},
        "price": {"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"},
        "pet": {
            "discriminator": {"propertyName": "kind"},
            "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
        },
    },
    "required": ["secret", "file", "format", "price", "pet"],
    "additionalProperties": False,
    "$defs": {
        "Kind": {"enum": ["a", "b"], "title": "Kind", "type": "string"},
        "Cat": {"type": "object", "properties": {"kind": {"const": "cat"}}},
        "Dog": {"type": "object", "properties": {"kind": {"const": "dog"}}},
    },
}


def test_what_pydantic_writes_is_held_to(front: Frontend) -> None:
    held_to = grammar(front, response_format=of_schema(schema=PYDANTIC, strict=True))
    good = {"secret": "x", "file": "/a", "format": "a", "price": "1.50", "pet": {"kind": "cat"}}
    assert takes(front, held_to, json.dumps(good))
    for wrong in ({"format": "c"}, {"price": "x"}, {"price": "."}, {"file": 5}):
        assert not takes(front, held_to, json.dumps({**good, **wrong}))
    assert not takes(front, held_to, json.dumps({**good, "pet": {"kind": "x"}}))


UNENFORCED: dict[str, dict[str, Any]] = {
    "uniqueItems": {"type": "array", "uniqueItems": True},
    "contains": {"type": "array", "contains": {"type": "integer"}},
    "not": {"type": "string", "not": {"const": "a"}},
    "if": {"type": "string", "if": {}, "then": {}},
    "look-ahead": {"type": "string", "pattern": "^(?!a)b$"},
}


@pytest.mark.parametrize("keyword", UNENFORCED)
def test_what_cannot_be_enforced_is_ignored_unless_it_is_to_be_strict(
    keyword: str, front: Frontend
) -> None:
    schema = {"type": "object", "properties": {"x": UNENFORCED[keyword]}, "required": ["x"]}
    tool: dict[str, Any] = {"name": "f", "parameters": schema}
    forced = {"tool_choice": "required", "tools": [{"type": "function", "function": tool}]}
    assert grammar(front, response_format=of_schema(schema=schema))
    assert grammar(front, **forced)
    tool["strict"] = True
    refused: list[tuple[dict[str, Any], str]] = [
        ({"response_format": of_schema(schema=schema, strict=True)}, "response_format"),
        ({"guided_json": schema}, "guided_json"),
        (forced, "tools"),
    ]
    for fields, param in refused:
        with pytest.raises(InvalidRequest, match=keyword) as caught:
            grammar(front, **fields)
        assert caught.value.param == param


@pytest.mark.parametrize("name", ["qwen3_coder", "glm47", "deepseek_v32"])
def test_a_grammar_that_grows_too_long_is_refused_as_it_grows(name: str, front: Frontend) -> None:
    """Forms that write parameters one by one have all definitions beside each."""
    properties = {f"p{i}": {"type": "integer"} for i in range(100)}
    parameters = {"properties": properties, "$defs": {"n": {"description": "x" * 60_000}}}
    tool = {"type": "function", "function": {"name": "go", "parameters": parameters}}
    use = tool_use(chat(tools=[tool], tool_choice="required"))
    with pytest.raises(InvalidRequest, match="more than 65536 characters") as caught:
        forced_call(use, TOOL_FORMATS[name], front.tokenizer)
    assert caught.value.param == "tools"


@pytest.mark.parametrize("field", ["response_format", "tools"])
def test_no_expression_of_a_schema_that_is_too_long_is_compiled(
    field: str, front: Frontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []
    monkeypatch.setattr(json_schema, "_is_enforced", compiled.append)
    properties = {f"p{i}": {"type": "string", "pattern": "^(?!a)b$"} for i in range(3000)}
    schema = {"type": "object", "properties": properties}
    functions = [{"name": "f", "parameters": schema}, {"name": "g", "parameters": SCHEMA}]
    tools = [{"type": "function", "function": function} for function in functions]
    asked: dict[str, Any] = {"tool_choice": "required", "tools": tools}
    if field == "response_format":
        asked = {"response_format": of_schema(schema=schema)}
    with pytest.raises(InvalidRequest, match="must not have more than 65536 characters") as caught:
        grammar(front, **asked)
    assert (caught.value.param, compiled) == (field, [])


@pytest.mark.parametrize(
    "place",
    [
        {"properties": {"pattern": {"type": "string"}}},
        {"default": {"pattern": "x"}},
        {"enum": ["pattern"]},
    ],
)
def test_a_parameter_that_is_called_pattern_is_no_expression(
    place: dict[str, Any], front: Frontend
) -> None:
    described = {"type": "string", "description": "x" * 70_000}
    parameters = {"type": "object", "properties": {"a": described, "b": place}}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    use = tool_use(chat(tools=[tool], tool_choice="required"))
    assert len(forced_call(use, TOOL_FORMATS["qwen3_coder"], front.tokenizer)) < 2000
    described["pattern"] = "x"
    use = tool_use(chat(tools=[tool], tool_choice="required"))
    with pytest.raises(InvalidRequest, match="must not have more than 65536 characters"):
        forced_call(use, TOOL_FORMATS["qwen3_coder"], front.tokenizer)


def test_an_error_does_not_repeat_the_whole_grammar() -> None:
    schema = {"type": "object", "properties": 5, "description": "y" * 5000}
    with pytest.raises(InvalidRequest, match="properties must be an object") as caught:
        check_grammar(f"start: %json {json.dumps(schema)}", "tools", "tools")
    assert len(caught.value.message) <= len("tools: ") + 300
