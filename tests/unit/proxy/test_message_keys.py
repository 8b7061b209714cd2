"""Keys of requests that nothing can render: the same beginning has the same first keys."""

import itertools
import json
import time
from typing import Any

import pytest

from proxy.fleet.fleet import Fleet
from proxy.placement.planner import Need
from proxy.relay.bodies import RequestBody
from proxy.relay.message_keys import predicted_need
from proxy.relay.needs import Needs
from proxy.relay.request import ClientRequest
from proxy.relay.request_state import RelayedRequest

LONG = "Once upon a time there was a picture in three panels. " * 20
BLOCK = 16


def need(fields: dict[str, Any]) -> Need:
    return predicted_need(relayed(fields).body, "r")[0]


def relayed(fields: dict[str, Any]) -> RelayedRequest:
    raw = json.dumps(fields).encode()
    body = RequestBody.parse(raw)
    body.find_media(10)
    unused: Any = None
    return RelayedRequest(
        deadline=time.monotonic() + 1, request_id="r", body=body, response=unused, source=unused,
        client=ClientRequest("/v1/chat/completions", {}, raw), start=0.0,
    )  # fmt: skip


def chat(*parts: str | dict[str, Any], **more: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": p} if isinstance(p, str) else p for p in parts]
    return {"model": "m", "messages": [{"role": "user", "content": content}], **more}


def picture(name: str, size: int = 6000) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{name * size}"}}


def shared(first: dict[str, Any], second: dict[str, Any]) -> int:
    """Blocks that two requests have in common."""
    both = zip(need(first).keys(BLOCK), need(second).keys(BLOCK), strict=False)
    return next((i for i, (a, b) in enumerate(both) if a != b), len(need(first).keys(BLOCK)))


def test_the_same_request_has_the_same_keys_and_its_blocks_fit_the_prompt() -> None:
    asked = chat(LONG, picture("A"), "what is it?")
    found = need(asked)
    assert found.keys(BLOCK) == need(asked).keys(BLOCK)
    assert found.predicted and len(found.keys(BLOCK)) * BLOCK <= found.prompt_tokens
    assert all(0 <= key < 1 << 63 for key in found.keys(BLOCK))


def test_what_begins_alike_shares_its_first_blocks_and_no_more() -> None:
    one, two = chat(LONG, "one" * 99), chat(LONG, "two" * 99)
    assert len(LONG) // 64 - 1 <= shared(one, two) < len(need(one).keys(BLOCK)) - 2


def test_another_picture_ends_what_is_shared() -> None:
    before = shared(chat(LONG, picture("A"), LONG), chat(LONG, picture("B"), LONG))
    assert before <= len(LONG) // 64 + 2
    whole = need(chat(LONG, picture("A"), LONG)).keys(BLOCK)
    assert len(whole) > before + 16


@pytest.mark.parametrize(
    "more", [{"model": "lora"}, {"tools": [{"type": "function"}]}, {"cache_salt": "mine"}]
)
def test_what_decides_over_the_whole_prompt_is_in_every_key(more: dict[str, Any]) -> None:
    assert shared(chat(LONG), {**chat(LONG), **more}) == 0


def test_sampling_parameters_are_in_no_key() -> None:
    assert shared(chat(LONG), chat(LONG, temperature=0.5, max_tokens=9)) == len(
        need(chat(LONG)).keys(BLOCK)
    )
    assert need(chat(LONG, max_tokens=9)).max_tokens == 9
    assert need(chat(LONG, max_tokens=10**30)).max_tokens == 0


def test_media_have_places_that_lie_in_the_prompt_one_after_the_other() -> None:
    found = need(chat("a", picture("A"), "b", picture("B"), picture("A")))
    spans = [(item.offset, item.offset + item.tokens) for item in found.items]
    assert spans == sorted(spans) and spans[-1][1] <= found.prompt_tokens
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    names = [item.mm_hash for item in found.items]
    assert names[0] == names[2] != names[1]


@pytest.mark.parametrize(
    "fields",
    [{"prompt": LONG}, {"prompt": [1, 2, 3]}, {}, {"messages": 5}, {"messages": [5, None, "x"]},
     {"messages": [{"content": [5, {"type": 7}]}]}, {"model": 5, "messages": []}],
)  # fmt: skip
def test_what_workers_will_refuse_can_be_asked_for_all_the_same(fields: dict[str, Any]) -> None:
    found = need(fields)
    assert found.prompt_tokens >= 1 and found.keys(BLOCK) == need(fields).keys(BLOCK)


async def test_requests_that_clients_give_one_id_are_two_to_a_master() -> None:
    """Else the second would give back what the first one holds."""
    needs = Needs(Fleet(), None)
    first, second = [await needs.of(relayed(chat("Hello"))) for _ in range(2)]
    assert first.request_id != second.request_id
