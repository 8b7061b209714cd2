"""What each field of /v1/responses does to an answer: one probe a field, which fails where it has
no effect."""

import json
import re
from typing import Any

from tests.conformance.agent_probes import (
    HOT,
    SHARED,
    AgentProbe,
    effort,
    length,
    likeliest_only,
    most_tokens,
    tool,
)
from tests.conformance.agents import PATHS, Agent, said
from tests.conformance.asking import PROMPT, TOKENS, Json
from tests.conformance.probes import FORCED, forced, goes_on, terse
from tests.conformance.prompt_probes import NOTHING, SCHEMA, TOOL
from tests.support.stack import call

USER = {"role": "user", "content": PROMPT}


def stored(agent: Agent, name: str) -> tuple[int, Any]:
    return call(f"{agent.door.url}{PATHS['responses']}/{name}")


def input_items(agent: Agent) -> None:
    other = agent.same_as_chat({"messages": [{"role": "user", "content": "Hi"}]}, input="Hi")
    assert other.text != agent.base().text
    turns = [USER, {"role": "assistant", "content": "Two."}, {"role": "user", "content": "Why?"}]
    agent.same_as_chat({"messages": turns}, input=turns)
    agent.refused("input", input=...)


def instructions(agent: Agent) -> None:
    """They hold for one response alone."""
    chat = {"messages": [{"role": "system", "content": "Be brief."}, USER]}
    found = agent.same_as_chat(chat, instructions="Be brief.")
    assert found.prompt > agent.base().prompt and found.whole["instructions"] == "Be brief."
    after(agent, found.whole)


def after(agent: Agent, response: Json) -> None:
    """A response goes on from another."""
    answer = {"role": "assistant", "content": said("responses", response).text}
    turns = [USER, answer, {"role": "user", "content": "Why?"}]
    found = agent.same_as_chat(
        {"messages": turns}, input="Why?", previous_response_id=response["id"]
    )
    assert found.whole["previous_response_id"] == response["id"]


def previous_response_id(agent: Agent) -> None:
    after(agent, agent.base().whole)
    after(agent, agent.stream())
    assert agent.post(previous_response_id="resp_unknown")[0] == 404


def store(agent: Agent) -> None:
    for kept, left in (
        (agent.base().whole, agent.draw(store=False).whole),
        (agent.stream(), agent.stream(store=False)),
    ):
        assert (kept["store"], left["store"]) == (True, False)
        assert stored(agent, kept["id"]) == (200, kept)
        assert stored(agent, left["id"])[0] == 404


def tools(agent: Agent) -> None:
    found = agent.same_as_chat({"tools": [TOOL]}, tools=[tool(agent)])
    assert found.prompt > agent.base().prompt and found.whole["tools"] == [tool(agent)]


def tool_choice(agent: Agent) -> None:
    assert agent.ask(tools=[tool(agent)], tool_choice="none") == agent.base()
    auto = agent.ask(tools=[tool(agent)], tool_choice="auto")
    assert auto == agent.draw(tools=[tool(agent)])
    bias = {"logit_bias": terse(agent.door), "max_output_tokens": 90}
    named: Json = {"type": "function", "name": "draw"}
    allowed: Json = {"type": "allowed_tools", "mode": "required", "tools": [named]}
    for choice, ask in (("required", agent.ask), (named, agent.draw), (allowed, agent.draw)):
        found = ask(tools=[tool(agent)], tool_choice=choice, **bias)
        ((name, arguments),) = found.calls
        assert (name, json.loads(arguments)) == ("draw", {"a": 1})
        assert found.whole["tool_choice"] == choice
    agent.refused("tool_choice", tools=[tool(agent)], tool_choice={**named, "name": "other"})


def parallel_tool_calls(agent: Agent) -> None:
    bare = {"tools": [tool(agent, NOTHING)], "tool_choice": "required"}
    fields = {**bare, "logit_bias": goes_on(agent.door), "max_output_tokens": 60}
    found = agent.ask(**fields, parallel_tool_calls=False)
    assert len(found.calls) == 1 and found.whole["parallel_tool_calls"] is False
    assert len(agent.draw(**fields).calls) > 1


def held_to(pattern: str, **fields: Any) -> AgentProbe:
    def probe(agent: Agent) -> None:
        found = agent.ask(max_output_tokens=40, logit_bias=terse(agent.door), **fields)
        assert re.fullmatch(pattern, found.text, re.DOTALL), found.text

    return probe


def text(agent: Agent) -> None:
    form = {"type": "json_schema", "name": "s", "schema": SCHEMA}
    held_to(r"\{\"a\":1\}", text={"format": form})(agent)
    agent.templated("high", text={"verbosity": "high"}, chat_template="{{ verbosity }}")
    agent.refused("text.format.schema", text={"format": {**form, "schema": None}})


def reasoning(agent: Agent) -> None:
    effort(agent, {"reasoning": {"effort": "low"}})
    assert agent.ask(reasoning={"summary": "auto"}) == agent.base()


def truncation(agent: Agent) -> None:
    assert agent.ask(truncation="disabled") == agent.base()
    agent.refused("input", truncation="disabled", input="Once upon a time. " * 2000)
    agent.refused("truncation", truncation="auto")


def include(agent: Agent) -> None:
    assert agent.ask(include=["reasoning.encrypted_content"]) == agent.base()
    agent.refused("include[0]", include=["message.output_text.logprobs"])


def repeated(name: str, value: Any) -> AgentProbe:
    """The response has it too, and so has the stored one."""

    def probe(agent: Agent) -> None:
        for answer in (agent.draw(**{name: value}).whole, agent.stream(**{name: value})):
            assert answer[name] == stored(agent, answer["id"])[1][name] == value

    return probe


def seed(agent: Agent) -> None:
    hot = {"temperature": HOT, **length(agent, 4)}
    first, other = (agent.draw(**hot, seed=number) for number in (1, 2))
    assert first.text != other.text and agent.ask(**hot, seed=1) == first


def repetition_penalty(agent: Agent) -> None:
    found = agent.same_as_chat({"repetition_penalty": 1e-4}, repetition_penalty=1e-4)
    assert found.text != agent.base().text


def evened_out(name: str) -> AgentProbe:
    def probe(agent: Agent) -> None:
        bias = {str(agent.door.tokenize(letter)[0]): FORCED for letter in "abcdefgh"}
        sought, avoided = (
            set(agent.ask(logit_bias=bias, max_output_tokens=8, **{name: by}).text)
            for by in (-2.0, 2.0)
        )
        assert len(sought) < len(avoided) and sought | avoided <= set("abcdefgh")

    return probe


def logit_bias(agent: Agent) -> None:
    assert agent.ask(**forced(agent.door)).text == "x" * TOKENS


def stop(agent: Agent) -> None:
    found = agent.ask(**forced(agent.door, stop=["xx"]), max_output_tokens=3)
    assert (found.text, found.whole["status"]) == ("", "completed")


def include_stop_str_in_output(agent: Agent) -> None:
    fields = forced(agent.door, stop="xx", include_stop_str_in_output=True)
    assert agent.ask(**fields, max_output_tokens=3).text == "xx"


def ignore_eos(agent: Agent) -> None:
    bias = {str(agent.door.eos): FORCED}
    lengths = [agent.ask(logit_bias=bias, ignore_eos=ignored).output for ignored in (False, True)]
    assert lengths == [1, TOKENS]


def skip_special_tokens(agent: Agent) -> None:
    fields = {"logit_bias": {str(agent.door.eos): FORCED}, "ignore_eos": True}
    texts = [agent.ask(**fields, skip_special_tokens=skipped).text for skipped in (True, False)]
    assert texts == ["", "<|im_end|>" * TOKENS]


def mm_processor_kwargs(agent: Agent) -> None:
    """The model here takes no pictures; tests/integration asks one that does."""
    assert agent.ask(mm_processor_kwargs={}) == agent.base()
    agent.refused("mm_processor_kwargs", mm_processor_kwargs={"max_pixels": 65536})


def priority(agent: Agent) -> None:
    assert agent.ask(priority=1) == agent.base()
    agent.refused("priority", priority=-1)


def cache_salt(agent: Agent) -> None:
    long = "Once upon a time there was a small server. " * 8

    def cached(salt: str) -> int:
        return agent.draw(input=long, cache_salt=f"{salt} {agent.door.dialect} responses").cached

    assert (cached("a"), cached("b")) == (0, 0) and cached("a") > 0
    agent.refused("cache_salt", cache_salt="s" * 1000)


def request_id(agent: Agent) -> None:
    for answer in (agent.draw(request_id="me 7").whole, agent.stream(request_id="me 7")):
        assert answer["id"].startswith("resp_me_7-")
        assert stored(agent, answer["id"]) == (200, answer)
    ids = [agent.draw(request_id="me 7").whole["id"] for _ in range(2)]
    assert ids[0] != ids[1]


def stop_token_ids(agent: Agent) -> None:
    found = agent.ask(**forced(agent.door, stop_token_ids=[agent.door.x]))
    assert (found.output, found.whole["status"]) == (1, "completed")
    agent.refused("stop_token_ids", stop_token_ids=[1_000_000])


def session_id(agent: Agent) -> None:
    assert agent.ask(session_id="conversation") == agent.base()
    agent.refused("session_id", session_id=5)


def include_reasoning(agent: Agent) -> None:
    thinks = {"chat_template": "{{ messages[0].content }}<think>\n", **length(agent, 4)}
    thought, hidden = agent.ask(**thinks), agent.ask(**thinks, include_reasoning=False)
    assert thought.thought and not thought.text
    assert not hidden.thought and not hidden.text and hidden.output == thought.output


def chat_template(agent: Agent) -> None:
    agent.templated(f"{PROMPT}!", chat_template="{{ messages[0].content }}!")
    agent.refused("chat_template", chat_template="{{")


def chat_template_kwargs(agent: Agent) -> None:
    agent.templated("server", chat_template="{{ a }}", chat_template_kwargs={"a": "server"})


RESPONSE_PROBES: dict[str, AgentProbe] = {
    **SHARED,
    "input": input_items,
    "max_output_tokens": most_tokens,
    **{probe.__name__: probe for probe in (
        instructions, previous_response_id, store, tools, tool_choice, parallel_tool_calls, text,
        reasoning, truncation, include, seed, repetition_penalty, logit_bias, stop, ignore_eos,
        include_stop_str_in_output, skip_special_tokens, mm_processor_kwargs, priority, cache_salt,
        request_id, stop_token_ids, session_id, include_reasoning, chat_template,
        chat_template_kwargs,
    )},
    "metadata": repeated("metadata", {"a": "b"}),
    "user": repeated("user", "u"),
    "min_p": likeliest_only(min_p=1.0),
    "presence_penalty": evened_out("presence_penalty"),
    "frequency_penalty": evened_out("frequency_penalty"),
    "structured_outputs": held_to("ab{3}c", structured_outputs={"regex": "ab{3}c"}),
}  # fmt: skip
"""By field."""
