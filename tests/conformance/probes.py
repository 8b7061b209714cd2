"""What each field that works does to an answer: one probe a field, which fails where it has no
effect."""

import json
import re
from typing import Any

import pytest

from protocol.request_fields import Route
from tests.conformance.asking import TOKENS, Door, ids_of, logprobs_of, prompt_ids_of, text_of
from tests.conformance.prompt_probes import NOTHING, PROMPT_PROBES, SCHEMA, TOOL, Probe

FORCED = 100  # a bias that no logit of a tiny model outweighs


def forced(door: Door, **fields: Any) -> dict[str, Any]:
    """The output is x again and again."""
    return {"logit_bias": {str(door.x): FORCED}, **fields}


def drawn(door: Door, route: Route, **fields: Any) -> list[list[int]]:
    """Outputs of a seed, at a temperature that makes no token likely."""
    answer = door.ask(route, **{"temperature": 2.0, "seed": 1, "n": 3, **fields})
    return [ids_of(answer, index) for index in range(len(answer["choices"]))]


def of_letters(door: Door, route: Route, **fields: Any) -> set[int]:
    """Which letters an output has that may have no other tokens."""
    letters = [door.tokenize(letter)[0] for letter in "abcdefgh"]
    return set(ids_of(door.ask(route, allowed_token_ids=letters, max_tokens=8, **fields)))


def terse(door: Door) -> dict[str, int]:
    """Blanks only where a form asks for them: a tiny model writes them again and again."""
    return {str(door.tokenize(blank)[0]): -FORCED for blank in (" ", "\n", "\t", "\r")}


def goes_on(door: Door) -> dict[str, int]:
    """After a call comes another, where one may: outputs do not end, and few blanks are there."""
    unwanted = [door.eos, *(door.tokenize(blank)[0] for blank in (" ", "\t", "\r"))]
    return {str(token): -FORCED for token in unwanted}


def model(door: Door, route: Route) -> None:
    assert door.ask(route, model="tiny")["model"] == "tiny"
    status, answer = door.post(route, model="other")
    assert (status, answer["error"]["code"]) == (404, "model_not_found")


def stream(door: Door, route: Route) -> None:
    events = door.stream(route)
    assert "".join(text_of(event) for event in events) == text_of(door.base(route))


def stream_options(door: Door, route: Route) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = door.stream(route, stream_options=options)
    assert events[-1]["usage"]["completion_tokens"] == TOKENS and not events[-1]["choices"]
    counts = [event["usage"]["completion_tokens"] for event in events[:-1]]
    assert counts == sorted(counts) and counts[-1] == TOKENS
    door.refused(route, "stream_options", stream_options=options)


def max_tokens(door: Door, route: Route) -> None:
    assert len(ids_of(door.ask(route, max_tokens=3))) == 3


def max_completion_tokens(door: Door, route: Route) -> None:
    assert len(ids_of(door.ask(route, max_completion_tokens=3))) == 3


def n(door: Door, route: Route) -> None:
    assert len(door.ask(route, n=2)["choices"]) == 2


def best_of(door: Door, route: Route) -> None:
    wanted = {"n": 3, "temperature": 1.0, "seed": 5, "logprobs": 0}
    means = {}
    for index, choice in enumerate(door.ask(route, **wanted)["choices"]):
        means[index] = sum(choice["logprobs"]["token_logprobs"]), choice["token_ids"]
    answer = door.ask(route, **{**wanted, "n": 1, "best_of": 3, "logprobs": None})
    assert answer["usage"]["completion_tokens"] == 3 * TOKENS
    assert [ids_of(answer)] == [max(means.values())[1]] and len(answer["choices"]) == 1


def searched(door: Door, route: Route, **fields: Any) -> list[list[int]]:
    """Outputs of a beam search, the best first."""
    fields = {"n": 4, "use_beam_search": True, "ignore_eos": True, **fields}
    return [choice["token_ids"] for choice in door.ask(route, **fields)["choices"]]


def use_beam_search(door: Door, route: Route) -> None:
    beams = searched(door, route)
    assert len(set(map(tuple, beams))) == 4 and {len(beam) for beam in beams} == {TOKENS}
    assert searched(door, route, n=1) == [ids_of(door.ask(route, ignore_eos=True))]
    door.refused(route, "temperature", use_beam_search=True, temperature=0.5)
    door.refused(route, "presence_penalty", use_beam_search=True, presence_penalty=1.0)


def length_penalty(door: Door, route: Route) -> None:
    ends = [searched(door, route)[1][1]]
    short, long = (
        searched(door, route, stop_token_ids=ends, length_penalty=penalty, max_tokens=4)
        for penalty in (-10.0, 10.0)
    )
    assert sum(map(len, short)) < sum(map(len, long)) == 4 * 4
    door.refused(route, "length_penalty", length_penalty=2.0)


def early_stopping(door: Door, route: Route) -> None:
    """Of beams that rank the higher the longer they are, the first to end are not the best."""
    ends = [beam[1] for beam in searched(door, route)]
    fields = {"stop_token_ids": ends, "length_penalty": 10.0, "max_tokens": 4}
    early, late = (searched(door, route, early_stopping=how, **fields) for how in (True, "never"))
    assert len(early) == len(late) == 4 and max(map(len, early)) == 2 < max(map(len, late))
    door.refused(route, "early_stopping", early_stopping=True)


def temperature(door: Door, route: Route) -> None:
    alike = door.ask(route, n=4, max_tokens=6)
    assert all(ids_of(alike, index) == ids_of(alike) for index in range(4))
    assert any(ids != ids_of(door.base(route)) for ids in drawn(door, route))


def likeliest_only(**fields: Any) -> Probe:
    def probe(door: Door, route: Route) -> None:
        assert drawn(door, route, **fields) == [ids_of(door.base(route))] * 3

    return probe


def seed(door: Door, route: Route) -> None:
    first = drawn(door, route)
    assert first == drawn(door, route) and len(set(map(tuple, first))) > 1
    assert first != drawn(door, route, seed=2)


def stop(door: Door, route: Route) -> None:
    answer = door.ask(route, **forced(door, stop=["xx"]), max_tokens=3)
    (choice,) = answer["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "xx")
    assert text_of(answer) == ""


def include_stop_str_in_output(door: Door, route: Route) -> None:
    fields = forced(door, stop="xx", include_stop_str_in_output=True)
    assert text_of(door.ask(route, **fields, max_tokens=3)) == "xx"


def stop_token_ids(door: Door, route: Route) -> None:
    answer = door.ask(route, **forced(door, stop_token_ids=[door.x]))
    (choice,) = answer["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", door.x)


def ended(door: Door, route: Route, **fields: Any) -> int:
    """Tokens of an output that would end at once."""
    return len(ids_of(door.ask(route, logit_bias={str(door.eos): FORCED}, **fields)))


def ignore_eos(door: Door, route: Route) -> None:
    lengths = ended(door, route, ignore_eos=False), ended(door, route, ignore_eos=True)
    assert lengths == (1, TOKENS)


def min_tokens(door: Door, route: Route) -> None:
    assert ended(door, route, ignore_eos=False, min_tokens=1, max_tokens=3) == 2


def evened_out(name: str) -> Probe:
    def probe(door: Door, route: Route) -> None:
        sought, avoided = (of_letters(door, route, **{name: by}) for by in (-2.0, 2.0))
        assert len(sought) < len(avoided)

    return probe


def repetition_penalty(door: Door, route: Route) -> None:
    answer = door.ask(route, repetition_penalty=1e-4)
    assert set(ids_of(answer)) <= set(prompt_ids_of(answer))
    assert not set(ids_of(door.base(route))) <= set(prompt_ids_of(answer))


def logit_bias(door: Door, route: Route) -> None:
    assert ids_of(door.ask(route, **forced(door))) == [door.x] * TOKENS


def allowed_token_ids(door: Door, route: Route) -> None:
    assert ids_of(door.ask(route, allowed_token_ids=[door.x])) == [door.x] * TOKENS


def bad_words(door: Door, route: Route) -> None:
    assert door.x not in ids_of(door.ask(route, **forced(door, bad_words=["x"])))


def logprobs(door: Door, route: Route) -> None:
    answer = door.ask(route, logprobs=0 if route == "completions" else True)
    tokens, values = logprobs_of(answer)
    assert len(tokens) == TOKENS and all(value < 0 for value in values)


def top_logprobs(door: Door, route: Route) -> None:
    entries = door.ask(route, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    assert [len(entry["top_logprobs"]) for entry in entries] == [2] * TOKENS


def logprob_token_ids(door: Door, route: Route) -> None:
    wanted = {"logprobs": 0} if route == "completions" else {"logprobs": True}
    named = [door.x, door.eos]
    asked = {"logprob_token_ids": named, "return_tokens_as_token_ids": True, **wanted}
    found = door.ask(route, **asked)["choices"][0]["logprobs"]
    shown = found["top_logprobs"] if route == "completions" else [
        {top["token"]: top["logprob"] for top in entry["top_logprobs"]}
        for entry in found["content"]
    ]  # fmt: skip
    assert len(shown) == TOKENS
    for place in shown:
        assert all(place[f"token_id:{token}"] < 0 for token in named)
    alone = door.ask(route, max_tokens=1, logit_bias={str(door.x): FORCED}, **wanted)
    assert logprobs_of(alone)[1][0] == pytest.approx(shown[0][f"token_id:{door.x}"], rel=1e-4)
    door.refused(route, "logprob_token_ids", logprob_token_ids=named)


def return_tokens_as_token_ids(door: Door, route: Route) -> None:
    wanted = 0 if route == "completions" else True
    answer = door.ask(route, logprobs=wanted, return_tokens_as_token_ids=True)
    assert logprobs_of(answer)[0] == [f"token_id:{token}" for token in ids_of(answer)]


def skip_special_tokens(door: Door, route: Route) -> None:
    bias = {str(door.eos): FORCED}
    texts = [
        text_of(door.ask(route, logit_bias=bias, skip_special_tokens=s)) for s in (True, False)
    ]
    assert texts == ["", "<|im_end|>" * TOKENS]


def held_to(pattern: str, **fields: Any) -> Probe:
    def probe(door: Door, route: Route) -> None:
        free = {"max_tokens": 40, "ignore_eos": ..., "logit_bias": terse(door)}
        answer = door.ask(route, **free, **fields)
        assert re.fullmatch(pattern, text_of(answer), re.DOTALL), text_of(answer)

    return probe


def tool_choice(door: Door, route: Route) -> None:
    wanted = {"tools": [TOOL], "max_tokens": 90, "ignore_eos": ..., "logit_bias": terse(door)}
    none = door.ask(route, tools=[TOOL], tool_choice="none")
    assert prompt_ids_of(none) == prompt_ids_of(door.base(route))
    choice = door.ask(route, tool_choice="required", **wanted)["choices"][0]
    (called,) = choice["message"]["tool_calls"][:1]
    assert (called["function"]["name"], choice["finish_reason"]) == ("draw", "tool_calls")
    assert json.loads(called["function"]["arguments"]) == {"a": 1}


def parallel_tool_calls(door: Door, route: Route) -> None:
    bare = {"type": "function", "function": {"name": "draw", "parameters": NOTHING}}
    wanted = {"tools": [bare], "tool_choice": "required", "max_tokens": 60, "ignore_eos": ...}

    def calls(**fields: Any) -> int:
        answer = door.ask(route, **wanted, logit_bias=goes_on(door), **fields)
        return len(answer["choices"][0]["message"]["tool_calls"])

    assert calls(parallel_tool_calls=False) == 1
    assert calls() > 1


def service_tier(door: Door, route: Route) -> None:
    assert door.ask(route, service_tier="flex")["service_tier"] == "default"
    assert "service_tier" not in door.base(route)


def include_reasoning(door: Door, route: Route) -> None:
    thinks = {"chat_template": "{{ messages[0].content }}<think>\n", "max_tokens": 4}
    thought = door.ask(route, **thinks)["choices"][0]["message"]
    assert thought["reasoning"] and not thought["content"]
    for event in door.stream(route, include_reasoning=False, **thinks):
        assert "reasoning" not in str(event)
    hidden = door.ask(route, include_reasoning=False, **thinks)
    assert "reasoning" not in hidden["choices"][0]["message"] and not text_of(hidden)
    assert hidden["usage"]["completion_tokens"] == 4


def priority(door: Door, route: Route) -> None:
    door.ask(route, priority=1)
    door.refused(route, "priority", priority=-1)


PROBES: dict[str, Probe] = {
    **PROMPT_PROBES,
    **{probe.__name__: probe for probe in (
        model, stream, stream_options, max_tokens, max_completion_tokens, n, best_of, temperature,
        use_beam_search, length_penalty, early_stopping,
        seed, stop, include_stop_str_in_output, stop_token_ids, ignore_eos, min_tokens,
        repetition_penalty, logit_bias, allowed_token_ids, bad_words, logprobs, top_logprobs,
        logprob_token_ids, return_tokens_as_token_ids, include_reasoning, skip_special_tokens,
        tool_choice, parallel_tool_calls, service_tier, priority,
    )},
    "top_p": likeliest_only(top_p=1e-6),
    "top_k": likeliest_only(top_k=1),
    "min_p": likeliest_only(min_p=1.0),
    "presence_penalty": evened_out("presence_penalty"),
    "frequency_penalty": evened_out("frequency_penalty"),
    "response_format": held_to(
        r"\{\s*\"a\"\s*:\s*1\s*\}",
        response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}},
    ),
    "structured_outputs": held_to("ab{3}c", structured_outputs={"regex": "ab{3}c"}),
    "guided_json": held_to(r"\{\s*\"a\"\s*:\s*1\s*\}", guided_json=SCHEMA),
    "guided_regex": held_to("ab{3}c", guided_regex="ab{3}c"),
    "guided_choice": held_to("left|right", guided_choice=["left", "right"]),
    "guided_grammar": held_to("left", guided_grammar='start: "left"'),
}  # fmt: skip
"""By field."""
