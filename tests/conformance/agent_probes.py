"""What each field that /v1/responses and /v1/messages have alike does to an answer: one probe a
field, which fails where it has no effect."""

from collections.abc import Callable
from typing import Any

from tests.conformance.agents import Agent, Said
from tests.conformance.asking import PROMPT, Json
from tests.conformance.prompt_probes import SCHEMA

AgentProbe = Callable[[Agent], None]
HOT = 2.0


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
    events = agent.events(**length(agent, 4))
    deltas = [event["delta"] for event in events if event["type"].endswith("delta")]
    assert len(deltas) > 1  # it comes piece by piece


def most_tokens(agent: Agent) -> None:
    short = agent.ask(**length(agent, 3))
    assert short.output == 3 and short.ended != agent.draw(**length(agent, 100)).ended
    (name,) = too_many = length(agent, 1_000_000)
    agent.refused(name, **too_many)


def draws(agent: Agent, **fields: Any) -> list[Said]:
    """A few, at a temperature that makes no token likely."""
    return [agent.draw(temperature=HOT, **fields) for _ in range(3)]


def temperature(agent: Agent) -> None:
    longer = length(agent, 8)
    assert agent.ask(**longer) == agent.draw(**longer) == agent.draw(**longer)
    assert any(found.text != agent.base().text for found in draws(agent))
    agent.refused("temperature", temperature=-1)


def likeliest_only(**fields: Any) -> AgentProbe:
    def probe(agent: Agent) -> None:
        assert draws(agent, **fields) == [agent.base()] * 3
        assert agent.ask(temperature=HOT, **fields) == agent.base()

    return probe


def effort(agent: Agent, shown: Json) -> None:
    """The template of `conftest` writes the effort."""
    found = agent.same_as_chat({"reasoning_effort": "low"}, **shown)
    assert found.prompt > agent.base().prompt
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
