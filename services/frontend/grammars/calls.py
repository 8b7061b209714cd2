"""Grammars of calls that a client forces, as the model writes them, and what comes before an answer
that is held to a grammar."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import msgspec
from llguidance import LLMatcher

from protocol.errors import InvalidRequest
from protocol.openai import SharedFields
from services.frontend.grammars.json_schema import check_grammar, enforceable, schema_grammar
from services.frontend.grammars.requested import asks_for_grammar, grammar_of
from services.frontend.parsing.base import Function, ToolFormat
from services.frontend.parsing.reading import Reading
from services.frontend.parsing.rules import Rules
from services.frontend.tokenizer import Tokenizer
from services.frontend.tool_use import ToolUse


async def grammar_for(
    request: SharedFields, use: ToolUse, form: type[ToolFormat] | None, tokenizer: Tokenizer
) -> str:
    """What the output must match, "" if it is free. A large grammar takes some ten milliseconds to
    check, on a thread of its own."""

    def made() -> str:
        forced = []
        if use.forced and form is not None:
            forced.append(("tool_choice", forced_call(use, form, tokenizer)))
        return grammar_of(request, forced)

    if not (use.forced or asks_for_grammar(request)):
        return ""
    return await asyncio.to_thread(made)


def forced_call(use: ToolUse, form: type[ToolFormat], tokenizer: Tokenizer) -> str:
    """The grammar of an answer that is nothing but calls, in a form of llguidance."""
    rules = Rules(tokenizer.id)
    try:
        functions = [_enforceable(function) for function in use.functions]
        form().grammar(functions, use.most, rules)
    # Schemas of a client are walked recursively.
    except RecursionError:
        raise InvalidRequest("tools are nested too deeply", param="tools") from None
    return LLMatcher.grammar_from_lark(rules.lark())


def after_reasoning(grammar: str, reading: Reading, tokenizer: Tokenizer) -> str:
    """`grammar` for an answer that begins with reasoning, or with the head of a message, which are
    no part of what the client asked for."""
    rules = Rules(tokenizer.id)
    if reading.thinking is not None and reading.inside:
        opening = f'{rules.text_before(reading.thinking.close)} ("\\n\\n")?'
    elif reading.tools is not None and reading.tools.always and not reading.only:
        opening = reading.tools.opening(rules)
    else:
        return grammar
    rules.add("start", f"{opening} @answer")
    first, *others = msgspec.json.decode(grammar)["grammars"]
    parts = [{"lark_grammar": rules.lark()}, {**first, "name": "answer"}, *others]
    return msgspec.json.encode({"grammars": parts}).decode()


def _enforceable(function: Function) -> Function:
    """`InvalidRequest` if the function is strict and has what cannot be enforced."""
    if function.strict:
        param = f"tools: the parameters of {function.name}"
        check_grammar(schema_grammar(function.parameters, "tools", strict=True), param, "tools")
    return replace(function, parameters=enforceable(function.parameters, strict=function.strict))
