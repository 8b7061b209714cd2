"""What each field that works does to a prompt, or to what is said of it."""

from collections.abc import Callable
from typing import Any

from protocol.request_fields import Route
from tests.conformance.asking import (
    PROMPT,
    TOKENS,
    Door,
    ids_of,
    logprobs_of,
    prompt_ids_of,
    text_of,
)

Probe = Callable[[Door, Route], None]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": [1]}},
    "required": ["a"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "draw", "parameters": SCHEMA}}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
"""The schema of a tool without arguments."""


def templated(door: Door, route: Route, expected: str, template: str, **fields: Any) -> None:
    answer = door.ask(route, chat_template=template, **fields)
    assert prompt_ids_of(answer) == door.tokenize(expected)


def mm_processor_kwargs(door: Door, route: Route) -> None:
    """The model here takes no pictures; tests/integration asks one that does."""
    door.ask(route, mm_processor_kwargs={})
    door.refused(route, "mm_processor_kwargs", mm_processor_kwargs={"max_pixels": 65536})


def media_io_kwargs(door: Door, route: Route) -> None:
    """As `mm_processor_kwargs`."""
    door.ask(route, media_io_kwargs={})
    door.refused(route, "media_io_kwargs", media_io_kwargs={"video": {"fps": 1}})


def messages(door: Door, route: Route) -> None:
    turns = [{"role": "user", "content": "Hi"}]
    assert prompt_ids_of(door.ask(route, messages=turns)) != prompt_ids_of(door.base(route))


def prompt(door: Door, route: Route) -> None:
    texts = ["Hi", PROMPT]
    answer = door.ask(route, prompt=texts)
    prompts = [choice["prompt_token_ids"] for choice in answer["choices"]]
    assert prompts == [door.tokenize(text) for text in texts]
    events = door.stream(route, prompt=texts, stream_options={"include_usage": True})
    said = {0: "", 1: ""}
    for event in events:
        for choice in event["choices"]:
            said[choice["index"]] += choice["text"]
    assert said == {0: text_of(answer, 0), 1: text_of(answer, 1)}
    assert len({event["id"] for event in events}) == 1
    assert events[-1]["usage"]["total_tokens"] == answer["usage"]["total_tokens"]


def prompt_logprobs(door: Door, route: Route) -> None:
    answer = door.ask(route, prompt_logprobs=1)
    found = answer.get("prompt_logprobs") or answer["choices"][0]["prompt_logprobs"]
    ids = prompt_ids_of(answer)
    assert found[0] is None and len(found) == len(ids) > 1
    for token, place in zip(ids[1:], found[1:], strict=True):
        assert str(token) in place and {c["rank"] for c in place.values()} >= {1}
    answer = door.ask(route, prompt_logprobs=0)
    found = answer.get("prompt_logprobs") or answer["choices"][0]["prompt_logprobs"]
    assert [list(place) for place in found[1:]] == [[str(token)] for token in ids[1:]]
    door.refused(route, "prompt_logprobs", prompt_logprobs=1, stream=True)


def echo(door: Door, route: Route) -> None:
    base = text_of(door.base(route))
    assert text_of(door.ask(route, echo=True)) == PROMPT + base
    events = door.stream(route, echo=True, logprobs=1)
    assert "".join(text_of(event) for event in events) == PROMPT + base
    scored = door.ask(route, echo=True, logprobs=1, max_tokens=0)
    assert text_of(scored) == PROMPT and scored["usage"]["completion_tokens"] == 0
    tokens, values = logprobs_of(scored)
    assert "".join(tokens) == PROMPT and values[0] is None and max(values[1:]) < 0
    longer = door.ask(route, echo=True, logprobs=1)
    assert logprobs_of(longer)[1][: len(values)] == values
    assert len(logprobs_of(longer)[0]) == len(tokens) + TOKENS


def return_token_ids(door: Door, route: Route) -> None:
    events = door.stream(route)
    assert prompt_ids_of(events[0]) == prompt_ids_of(door.base(route))
    streamed = [ids_of(event) for event in events if "token_ids" in event["choices"][0]]
    assert [token for ids in streamed for token in ids] == ids_of(door.base(route))
    assert "token_ids" not in door.ask(route, return_token_ids=False)["choices"][0]


def add_special_tokens(door: Door, route: Route) -> None:
    """This model's tokenizer adds none: the field is checked, and changes nothing."""
    assert prompt_ids_of(door.ask(route, add_special_tokens=True)) == prompt_ids_of(
        door.base(route)
    )
    door.refused(route, "add_special_tokens", add_special_tokens="yes")


def truncate_prompt_tokens(door: Door, route: Route) -> None:
    whole = prompt_ids_of(door.base(route))
    assert prompt_ids_of(door.ask(route, truncate_prompt_tokens=3)) == whole[-3:]
    assert prompt_ids_of(door.ask(route, truncate_prompt_tokens=-1)) == whole


def truncation_side(door: Door, route: Route) -> None:
    cut = {"truncate_prompt_tokens": 3, "truncation_side": "right"}
    assert prompt_ids_of(door.ask(route, **cut)) == prompt_ids_of(door.base(route))[:3]


def tools(door: Door, route: Route) -> None:
    longer = prompt_ids_of(door.ask(route, tools=[TOOL]))
    assert len(longer) > len(prompt_ids_of(door.base(route)))


def documents(door: Door, route: Route) -> None:
    pages = [{"title": "Once", "text": "x"}]
    templated(door, route, "Once", "{{ documents[0].title }}", documents=pages)


def variable(name: str, value: str | bool) -> Probe:
    def probe(door: Door, route: Route) -> None:
        templated(door, route, str(value), f"{{{{ {name} }}}}", **{name: value})

    return probe


def chat_template_kwargs(door: Door, route: Route) -> None:
    templated(door, route, "server", "{{ word }}", chat_template_kwargs={"word": "server"})


def chat_template(door: Door, route: Route) -> None:
    templated(door, route, f"{PROMPT}!", "{{ messages[0].content }}!")
    door.refused(route, "chat_template", chat_template="{{")


def user_template(door: Door, route: Route) -> None:
    answer = door.ask(route, user_template="{{ messages[0].content }}?")
    assert prompt_ids_of(answer) == door.tokenize(f"{PROMPT}?")


def template_key(door: Door, route: Route) -> None:
    assert ids_of(door.ask(route, template_key="default")) == ids_of(door.base(route))
    door.refused(route, "template_key", template_key="other")


def extra_configs(door: Door, route: Route) -> None:
    answer = door.ask(route, max_tokens=..., extra_configs={"max_new_tokens": 2})
    assert answer["usage"]["completion_tokens"] == 2
    door.refused(route, "extra_configs.num_beams", extra_configs={"num_beams": 4})


def nvext(door: Door, route: Route) -> None:
    answer = door.ask(route, nvext={"repetition_penalty": 1e-4})
    assert ids_of(answer) == ids_of(door.ask(route, repetition_penalty=1e-4))
    assert ids_of(answer) != ids_of(door.base(route))
    door.refused(route, "nvext.token_data", nvext={"token_data": [5]})
    door.refused(route, "nvext.top_k", nvext={"top_k": "many"})


def add_generation_prompt(door: Door, route: Route) -> None:
    whole = prompt_ids_of(door.base(route))
    shorter = prompt_ids_of(door.ask(route, add_generation_prompt=False))
    assert shorter == whole[: len(shorter)] and len(shorter) < len(whole)


def continue_final_message(door: Door, route: Route) -> None:
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "I am"}]
    fields = {"messages": turns, "add_generation_prompt": False}
    opened = prompt_ids_of(door.ask(route, continue_final_message=True, **fields))
    closed = prompt_ids_of(door.ask(route, **fields))
    assert door.eos in closed[len(opened) :] and closed[: len(opened)] == opened


def cache_salt(door: Door, route: Route) -> None:
    long = "Once upon a time there was a small server. " * 8
    named = "prompt" if route == "completions" else "messages"
    turns: Any = long if named == "prompt" else [{"role": "user", "content": long}]

    def cached(salt: str) -> int:
        answer = door.ask(route, **{named: turns, "cache_salt": f"{salt} {door.dialect} {route}"})
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert (cached("a"), cached("b")) == (0, 0) and cached("a") > 0
    door.refused(route, "cache_salt", cache_salt="s" * 1000)


def transfer_params(name: str) -> Probe:
    def probe(door: Door, route: Route) -> None:
        assert ids_of(door.ask(route, **{name: {}})) == ids_of(door.base(route))
        door.refused(route, name, **{name: 5})

    return probe


def request_id(door: Door, route: Route) -> None:
    named = {"request_id": "me-7"}
    ids = {event["id"] for event in (door.ask(route, **named), door.stream(route, **named)[0])}
    assert len(ids) == 2 and all("me-7-" in name for name in ids)


def session_id(door: Door, route: Route) -> None:
    door.ask(route, session_id="conversation")
    door.refused(route, "session_id", session_id=5)


def chat_id(door: Door, route: Route) -> None:
    door.ask(route, chat_id="conversation")
    door.refused(route, "chat_id", chat_id=5)


PROMPT_PROBES: dict[str, Probe] = {
    **{probe.__name__: probe for probe in (
        messages, prompt, prompt_logprobs, echo, return_token_ids, add_special_tokens,
        truncate_prompt_tokens, truncation_side, tools, documents, chat_template_kwargs,
        chat_template, add_generation_prompt, continue_final_message, cache_salt, request_id,
        session_id, mm_processor_kwargs, media_io_kwargs, user_template, template_key,
        extra_configs, chat_id, nvext,
    )},
    "reasoning_effort": variable("reasoning_effort", "low"),
    "verbosity": variable("verbosity", "high"),
    "enable_thinking": variable("enable_thinking", True),
    "ec_transfer_params": transfer_params("ec_transfer_params"),
    "kv_transfer_params": transfer_params("kv_transfer_params"),
}  # fmt: skip
"""By field."""
