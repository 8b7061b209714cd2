"""References within the parameters of a function that is to be called: what they lead to."""

from typing import Any

import pytest

from protocol.errors import InvalidRequest
from services.frontend.grammars.references import anchored
from services.frontend.grammars.requested import forced_call
from services.frontend.parsing.base import Function
from services.frontend.parsing.reading import TOOL_FORMATS
from services.frontend.render import Frontend
from services.frontend.tool_use import tool_use
from tests.support.frontend_helpers import chat
from tests.support.grammars import front_with_tools, grammar, takes, written

PLACE = {"enum": ["here", "there"]}


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Frontend:
    return front_with_tools(tmp_path_factory.mktemp("model"))


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


def referring(reference: Any) -> dict[str, Any]:
    """A function whose argument `at` is what `reference` says."""
    properties = {"name": PLACE, "a b": PLACE, "at": {"$ref": reference}}
    parameters = {
        "type": "object", "properties": properties, "required": ["at"], "$defs": {"part0": PLACE},
        "definitions": {"place": PLACE},
    }  # fmt: skip
    return {"type": "function", "function": {"name": "go", "parameters": parameters}}


WENT = {
    "hermes": written("go", '{"at": "here"}'),
    "qwen3_coder": '<tool_call>\n<function=go>\n<parameter=at>\n"here"\n</parameter>\n</function>'
    "\n</tool_call>",
    "gemma4": '<|tool_call>call:go{at:<|"|>here<|"|>}<tool_call|>',
}


@pytest.mark.parametrize("name", WENT)
@pytest.mark.parametrize(
    "reference",
    ["#/$defs/part0", "#/definitions/place", "#/properties/name", "#/properties/a%20b"],
)
def test_arguments_may_refer_to_any_part_of_the_parameters(
    name: str, reference: str, front: Frontend
) -> None:
    use = tool_use(chat(tools=[referring(reference)], tool_choice="required"))
    held_to = forced_call(use, TOOL_FORMATS[name], front.tokenizer)
    assert takes(front, held_to, WENT[name])
    assert not takes(front, held_to, WENT[name].replace("here", "nowhere"))


def test_arguments_may_refer_to_all_of_them(front: Frontend) -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": False}
    tool = {"type": "function", "function": {"name": "go", "parameters": node}}
    use = tool_use(chat(tools=[tool], tool_choice="required"))
    held_to = forced_call(use, TOOL_FORMATS["hermes"], front.tokenizer)
    assert takes(front, held_to, written("go", '{"next": {"next": {}}}'))
    assert not takes(front, held_to, written("go", '{"next": {"name": "go"}}'))


@pytest.mark.parametrize("name", sorted(TOOL_FORMATS))
@pytest.mark.parametrize("reference", ["#/properties/nothing", "#/$defs/none", 5])
def test_a_reference_to_nothing_is_refused_by_its_name(
    name: str, reference: Any, front: Frontend
) -> None:
    use = tool_use(chat(tools=[referring(reference)], tool_choice="required"))
    with pytest.raises(InvalidRequest, match="parameters of go refer to") as caught:
        forced_call(use, TOOL_FORMATS[name], front.tokenizer)
    assert caught.value.param == "tools" and repr(reference) in caught.value.message


@pytest.mark.parametrize(
    ("reference", "named"),
    [("http://x/y", "http://x/y"), ("other.json#/a", "other.json"), ("#none", "none")],
)
def test_a_reference_of_another_kind_to_nothing_is_refused_too(
    reference: str, named: str, front: Frontend
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        grammar(front, tools=[referring(reference)], tool_choice="required")
    assert caught.value.param == "tool_choice" and named in caught.value.message


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder"])
@pytest.mark.parametrize("reference", ["#node", "https://x.y/place", "place"])
def test_arguments_may_refer_to_anchors_and_identifiers(
    name: str, reference: str, front: Frontend
) -> None:
    tool = referring(reference)
    key = "$anchor" if reference == "#node" else "$id"
    tool["function"]["parameters"]["$defs"]["n"] = {key: reference.strip("#"), **PLACE}
    use = tool_use(chat(tools=[tool], tool_choice="required"))
    held_to = forced_call(use, TOOL_FORMATS[name], front.tokenizer)
    assert takes(front, held_to, WENT[name])
    assert not takes(front, held_to, WENT[name].replace("here", "nowhere"))


UNUSED = {"$ref": "#/components/schemas/Place"}
INNER = {"$id": "https://x.y/n", "$ref": "#/$defs/m", "$defs": {"m": PLACE}}
RESOLVED: list[dict[str, Any]] = [
    {"properties": {"at": PLACE}, "$defs": {"n": UNUSED}, "definitions": {"m": UNUSED}},
    {"properties": {"at": {**PLACE, "$defs": {"n": UNUSED}}}},
    {"properties": {"at": {"$ref": "#/$defs/n"}}, "$defs": {"n": INNER}},
    {"properties": {"at": {"$ref": "#/$defs/n/$defs/m"}}, "$defs": {"n": INNER}},
    {"$id": "https://x.y/s", "properties": {"at": {"$ref": "https://x.y/s#/$defs/n"}},
     "$defs": {"n": PLACE}},
    {"$id": "https://x.y/s", "properties": {"at": {"anyOf": [{"$ref": "#/$defs/n"}]}},
     "$defs": {"n": {"$ref": "#/properties/name"}}},
]  # fmt: skip


@pytest.mark.parametrize("schema", RESOLVED)
def test_references_are_resolved_as_json_schema_has_them(
    schema: dict[str, Any], front: Frontend
) -> None:
    """Those of definitions that nothing uses are not; and # is the nearest schema with a URI."""
    properties = {"name": PLACE, **schema["properties"]}
    parameters = {"type": "object", **schema, "properties": properties, "required": ["at"]}
    tool = {"type": "function", "function": {"name": "go", "parameters": parameters}}
    held_to = grammar(front, tools=[tool], tool_choice="required")
    assert takes(front, held_to, WENT["hermes"])
    assert not takes(front, held_to, WENT["hermes"].replace("here", "nowhere"))


def test_a_schema_that_the_tool_names_by_its_draft_is_let_through(front: Frontend) -> None:
    tool = referring("http://json-schema.org/draft-07/schema#")
    held_to = grammar(front, tools=[tool], tool_choice="required")
    assert takes(front, held_to, written("go", '{"at": {"type": "object"}}'))


def test_a_long_chain_of_references_is_followed(front: Frontend) -> None:
    chain: dict[str, Any] = {f"n{i}": {"$ref": f"#/$defs/n{i + 1}"} for i in range(1000)}
    parameters = {
        "type": "object", "properties": {"at": {"$ref": "#/$defs/n0"}, "name": PLACE},
        "$defs": {**chain, "n1000": {"$ref": "#/properties/name"}},
    }  # fmt: skip
    moved = anchored(Function("go", parameters))
    assert moved["$defs"]["n1000"] == {"$ref": "#/$defs/part0"}
    assert moved["$defs"]["part0"] == PLACE and moved["$defs"]["n0"] == chain["n0"]


def test_places_that_are_written_again_are_bounded() -> None:
    """Each may hold the next ones: together they are as many times longer than the parameters."""
    properties: dict[str, Any] = {f"p{i}": {} for i in range(200)}
    nested: dict[str, Any] = {"properties": properties}
    for _ in range(50):
        nested = {"properties": {"a": nested}}
    places = ["#" + "/properties/a" * depth for depth in range(1, 51)]

    def parameters(count: int) -> dict[str, Any]:
        some = {"anyOf": [{"$ref": place} for place in places[:count]]}
        return {"properties": {**nested["properties"], "at": some}}

    few = anchored(Function("go", parameters(10)))
    assert len(few["$defs"]) == 10
    with pytest.raises(InvalidRequest, match="more than 65536 characters together") as caught:
        anchored(Function("go", parameters(50)))
    assert caught.value.param == "tools"


def test_gemmas_arguments_follow_references_and_alternatives(front: Frontend) -> None:
    schema = {
        "type": "object",
        "properties": {
            "at": {"$ref": "#/$defs/place"},
            "n": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "kind": {"const": "go"},
            "next": {"$ref": "#/$defs/node"},
        },
        "required": ["at", "n", "kind"],
        "$defs": {
            "place": {"enum": ["here", "there"]},
            "node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}},
        },
    }
    tool = {"type": "function", "function": {"name": "go", "parameters": schema}}
    use = tool_use(chat(tools=[tool], tool_choice="required"))
    held_to = forced_call(use, TOOL_FORMATS["gemma4"], front.tokenizer)

    def go(at: str, n: str, rest: str = "") -> str:
        return f'<|tool_call>call:go{{at:<|"|>{at}<|"|>,n:{n},kind:<|"|>go<|"|>{rest}}}<tool_call|>'

    assert takes(front, held_to, go("here", "5")) and takes(front, held_to, go("there", "null"))
    assert takes(front, held_to, go("here", "5", ',next:{next:<|"|>x<|"|>}'))
    for wrong in (go("nowhere", "5"), go("here", "x"), go("here", '<|"|>x<|"|>')):
        assert not takes(front, held_to, wrong)
