"""Values that a model writes as text become what the function's schema says."""

import json
from typing import Any

import pytest

from services.frontend.parsing.base import Function
from services.frontend.parsing.glm import GLM
from services.frontend.parsing.qwen3_coder import Qwen3Coder
from services.frontend.parsing.reading import Reading

Json = dict[str, Any]
DEFINED: Json = {
    "code": {"type": "string", "enum": ["1", "2"]},
    "loop": {"$ref": "#/$defs/loop"},
    "more": {"anyOf": [{"$ref": "#/$defs/more"}, {"$ref": "#/$defs/code"}]},
}
NULLABLE: Json = {"type": ["string", "null"]}
EITHER: Json = {"anyOf": [{"type": "string"}, {"type": "null"}]}
CASES: list[tuple[Json, str, Any]] = [
    (NULLABLE, "5", "5"),
    (NULLABLE, "true", "true"),
    (NULLABLE, "True", "True"),
    (NULLABLE, '{"a": 1}', '{"a": 1}'),
    (NULLABLE, "null", None),
    (NULLABLE, "None", None),
    (NULLABLE, '"Bern"', "Bern"),  # as forced calls write it
    (EITHER, "007", "007"),
    (EITHER, "12.50", "12.50"),
    (EITHER, "null", None),
    ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "5", 5),
    ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "5.5", "5.5"),
    ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "5.0", "5.0"),
    ({"enum": ["1", "2"]}, "1", "1"),
    ({"const": "null"}, "null", "null"),
    ({"enum": ["1", None]}, "1", "1"),
    ({"enum": ["1", None]}, "None", None),
    ({"$ref": "#/$defs/code"}, "1", "1"),
    ({"anyOf": [{"$ref": "#/$defs/code"}, {"type": "null"}]}, "1", "1"),
    ({"allOf": [{"$ref": "#/$defs/code"}]}, "1", "1"),
    ({"allOf": [{"$ref": "#/$defs/code"}, {"description": "x"}], "default": None}, "2", "2"),
    ({"$ref": "#/properties/first"}, "5", "5"),
    # What says nothing of strings, or is no schema, is read as JSON.
    ({}, "5", 5),
    ({"type": "integer"}, "5", 5),
    ({"type": "integer"}, "x", "x"),
    ({"type": "boolean"}, "True", True),
    ({"type": ["integer", "null"]}, "None", None),
    ({"type": "number"}, "5", 5),
    ({"enum": ["auto", 0.5, 1.0]}, "1", 1),
    ({"anyOf": [{"const": 2.0}, {"type": "string"}]}, "2", 2),
    ({"enum": ["auto", 1]}, "1.5", "1.5"),
    ({"type": "object"}, '{"a": 1}', {"a": 1}),
    ({"anyOf": 5}, "5", 5),
    ({"$ref": "#/$defs/none"}, "5", 5),
    ({"$ref": "#/$defs/loop"}, "5", 5),
    ({"$ref": "#/$defs/more"}, "5", 5),
]


@pytest.mark.parametrize(("schema", "text", "value"), CASES)
def test_a_value_has_a_type_of_its_schema(schema: Json, text: str, value: Any) -> None:
    parameters = {"properties": {"first": NULLABLE, "x": schema}, "$defs": DEFINED}
    tools = {"f": Function("f", parameters)}
    written = {
        GLM: f"<tool_call>f<arg_key>x</arg_key><arg_value>{text}</arg_value></tool_call>",
        Qwen3Coder: f"<function=f>\n<parameter=x>\n{text}\n</parameter>\n</function>",
    }
    for form, said in written.items():
        reader = Reading(form(tools), most=1).reader()
        assert reader is not None
        (call,) = reader.last(said).calls
        assert json.loads(call.arguments) == {"x": value}


def test_many_references_are_followed_once() -> None:
    twice = {f"n{i}": {"anyOf": [{"$ref": f"#/$defs/n{i + 1}"}] * 2} for i in range(2000)}
    function = Function("f", {"properties": {"x": {"$ref": "#/$defs/n0"}}, "$defs": twice})
    reader = Reading(GLM({"f": function}), most=1).reader()
    assert reader is not None
    said = "<tool_call>f<arg_key>x</arg_key><arg_value>5</arg_value></tool_call>"
    assert reader.last(said).calls[0].arguments == '{"x": 5}'
