"""What each field that /v1/responses and /v1/messages have alike does to an answer: one probe a
field, which fails where it has no effect."""

from collections.abc import Callable
from typing import Any

from tests.conformance.agents import Agent, Said
from tests.conformance.asking import PROMPT, Json
from tests.conformance.prompt_probes import CIRCLES, NOTHING, SCHEMA

AgentProbe = Callable[[Agent], None]


def asked(agent: Agent, text: str) -> Json:
    """The field that has the prompt."""
    if agent.route == "responses":
        return {"input": text}
    return {"messages": [{"role": "user", "content": text}]}


def length(agent: Agent, tokens: int) -> Json:
    """The field that bounds the output."""
    return {"max_output_tokens" if agent.route == "responses" else "max_tokens": tokens}


def tool(agent: Agent, schema: Any = SCHEMA) -> Json:
    if agent.route == "responses":
        return {"type": "function", "name": "draw", "parameters": schema}
    return {"name": "draw", "input_schema": schema}


def model(agent: Agent) -> None:
    assert agent.ask(model="tiny").whole["model"] == "tiny"
    assert agent.post(model="other")[0] == 404


def stream(agent: Agent) -> None:
    assert agent.draw(stream=False) == agent.ask()
    deltas = [e["delta"] for e in agent.events() if e["type"].endswith("delta")]
    assert len(deltas) > 1  # it comes piece by piece


def most_tokens(agent: Agent) -> None:
    short = agent.ask(**length(agent, 2))
    assert short.output == 2 and short.ended != agent.ask(**length(agent, 100)).ended
    (name,) = too_many = length(agent, 1_000_000)
    agent.refused(name, **too_many)


def draws(agent: Agent, **fields: Any) -> list[Said]:
    """A few, at a temperature."""
    return [agent.draw(temperature=1.0, **fields) for _ in range(3)]


def temperature(agent: Agent) -> None:
    assert agent.ask() == agent.draw()
    assert any(found.text != agent.draw().text for found in draws(agent))
    agent.refused("temperature", temperature=-1)


def likeliest_only(**fields: Any) -> AgentProbe:
    def probe(agent: Agent) -> None:
        assert draws(agent, **fields) == [agent.draw()] * 3
        assert agent.ask(temperature=1.0, **fields) == agent.draw()

    return probe


def several_calls(agent: Agent, **forced: Any) -> Json:
    """A request that the model answers with more than one call."""
    fields = {"tools": [tool(agent, NOTHING)], **forced, **length(agent, 80)}
    for text in CIRCLES:
        if len(agent.draw(**fields, **asked(agent, text)).calls) > 1:
            return {**fields, **asked(agent, text)}
    raise AssertionError("no prompt makes this model call twice")


def effort(agent: Agent, shown: Json) -> None:
    """The template of `conftest` writes the effort."""
    found = agent.same_as_chat({"reasoning_effort": "low"}, **shown)
    assert found.prompt > agent.draw().prompt
    assert found.text == agent.door.ask(
        "completions", prompt=f"Effort: low\n{rendered()}", ignore_eos=...
    )["choices"][0]["text"]  # fmt: skip


def rendered() -> str:
    """The usual prompt as the template writes it."""
    return f"<|im_start|>user\n{PROMPT}<|im_end|>\n<|im_start|>assistant\n"


def ec_transfer_params(agent: Agent) -> None:
    assert agent.ask(ec_transfer_params={}) == agent.ask()
    agent.refused("ec_transfer_params", ec_transfer_params=5)


SHARED: dict[str, AgentProbe] = {
    "model": model,
    "stream": stream,
    "ec_transfer_params": ec_transfer_params,
    "temperature": temperature,
    "top_p": likeliest_only(top_p=1e-6),
    "top_k": likeliest_only(top_k=1),
}
"""By field."""
