"""What each field of /v1/messages does to an answer, and to the count of its prompt."""

import json
from typing import Any

from tests.conformance.agent_probes import (
    SHARED,
    AgentProbe,
    asked,
    effort,
    most_tokens,
    several_calls,
    tool,
)
from tests.conformance.agents import Agent
from tests.conformance.asking import PROMPT
from tests.conformance.prompt_probes import SCHEMA, TOOL

USER = {"role": "user", "content": PROMPT}
FORM = {"type": "json_schema", "schema": SCHEMA}


def messages(agent: Agent) -> None:
    other = agent.same_as_chat(
        {"messages": [{"role": "user", "content": "Hi"}]}, **asked(agent, "Hi")
    )
    assert other.text != agent.draw().text and other.prompt != agent.draw().prompt
    agent.refused("messages", messages=...)


def system(agent: Agent) -> None:
    chat = {"messages": [{"role": "system", "content": "Be\nbrief."}, USER]}
    found = agent.same_as_chat(chat, system="Be\nbrief.")
    parts = [{"type": "text", "text": text} for text in ("Be", "brief.")]
    assert found == agent.ask(system=parts) and found.prompt > agent.draw().prompt


def stop_sequences(agent: Agent) -> None:
    text = agent.draw().text
    stop = text[1:3]
    found = agent.ask(stop_sequences=["never", stop])
    assert (found.text, found.ended) == (text[: text.index(stop)], f"stop_sequence {stop}")


def tools(agent: Agent) -> None:
    found = agent.same_as_chat({"tools": [TOOL]}, tools=[tool(agent)])
    assert found.prompt > agent.draw().prompt


def tool_choice(agent: Agent) -> None:
    shown: Any = {"tools": [tool(agent)], "max_tokens": 90}
    for choice in ({"type": "any"}, {"type": "tool", "name": "draw"}):
        found = agent.ask(tool_choice=choice, **shown)
        assert found.calls[0] == ("draw", {"a": 1}) and not found.text
    none = agent.ask(tools=[tool(agent)], tool_choice={"type": "none"})
    assert none == agent.draw()
    auto = agent.ask(tools=[tool(agent)], tool_choice={"type": "auto"})
    assert auto == agent.draw(tools=[tool(agent)])
    agent.refused("tool_choice", tool_choice={"type": "tool", "name": "other"}, **shown)
    several = several_calls(agent, tool_choice={"type": "any"})
    several["tool_choice"] = {"type": "any", "disable_parallel_tool_use": True}
    assert len(agent.ask(**several).calls) == 1


def thinking(agent: Agent) -> None:
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    found = agent.same_as_chat(off, thinking={"type": "disabled"})
    assert found.prompt > agent.draw().prompt  # the template closes the reasoning at once
    for kind in ({"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive"}):
        assert agent.ask(thinking=kind) == agent.draw()
    agent.refused("thinking", thinking={"type": "sometimes"})


def output_format(agent: Agent, **fields: Any) -> None:
    found = agent.ask(**(fields or {"output_format": FORM}), max_tokens=40)
    assert json.loads(found.text) == {"a": 1}


def output_config(agent: Agent) -> None:
    budget = {"type": "tokens", "total": 9}
    output_format(agent, output_config={"format": FORM, "task_budget": budget})
    effort(agent, {"output_config": {"effort": "low"}})


def chat_template_kwargs(agent: Agent) -> None:
    variables = {"chat_template_kwargs": {"enable_thinking": False}}
    found = agent.same_as_chat(variables, **variables)
    assert found.prompt > agent.draw().prompt


def cache_salt(agent: Agent) -> None:
    long = asked(agent, "Once upon a time there was a small server. " * 8)

    def cached(salt: str) -> int:
        return agent.draw(**long, cache_salt=f"{salt} {agent.door.dialect} messages").cached

    assert (cached("a"), cached("b")) == (0, 0) and cached("a") > 0
    agent.refused("cache_salt", cache_salt="s" * 1000)


MESSAGE_PROBES: dict[str, AgentProbe] = {
    **SHARED,
    "max_tokens": most_tokens,
    **{probe.__name__: probe for probe in (
        messages, system, stop_sequences, tools, tool_choice, thinking, output_config,
        chat_template_kwargs, cache_salt,
    )},
    "output_format": output_format,
}  # fmt: skip
"""By field."""
