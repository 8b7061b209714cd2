"""Grammars that a request's output is held to, and whether they let a text through."""

from pathlib import Path
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from services.frontend.render import Frontend
from tests.support.chat_templates import TEMPLATES
from tests.support.frontend_helpers import frontend, render, user, write_model

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
HALT = {"type": "function", "function": {"name": "halt"}}


def front_with_tools(path: Path) -> Frontend:
    """A frontend whose chat template takes tools; `path` becomes its model's folder."""
    model = write_model("qwen3", path)
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


def written(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
