"""Every way to ask for an output of some form: what it lets through, and what not."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from llguidance import LLMatcher, LLTokenizer

from protocol.errors import InvalidRequest
from services.frontend.grammars import json_schema
from services.frontend.grammars.json_schema import check_grammar
from services.frontend.grammars.references import anchored
from services.frontend.grammars.requested import forced_call
from services.frontend.parsing.base import Function
from services.frontend.parsing.reading import TOOL_FORMATS, Reading
from services.frontend.render import Frontend
from services.frontend.tool_use import tool_use
from tests.support.chat_templates import TEMPLATES
from tests.support.frontend_helpers import chat, frontend, render, render_prompts, user, write_model

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


PLACE = {"enum": ["here", "there"]}


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


@pytest.mark.parametrize("reference", ["http://x/y", "other.json#/a", "#none"])
def test_a_reference_of_another_kind_to_nothing_is_refused_too(
    reference: str, front: Frontend
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        grammar(front, tools=[referring(reference)], tool_choice="required")
    assert caught.value.param == "tool_choice" and reference.strip("#") in caught.value.message


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


def test_a_call_can_be_asked_for_only_where_it_would_be_found(tmp_path: Path) -> None:
    front = frontend(write_model("qwen3", tmp_path))
    with pytest.raises(InvalidRequest) as caught:
        grammar(front, tools=[HALT], tool_choice="required")
    assert (caught.value.param, caught.value.code) == ("tool_choice", "unsupported_field")
