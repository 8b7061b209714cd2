"""What proxies do with fields beside what their rows say: one probe for each that has a note."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from protocol.agent_fields import AGENT_FIELDS
from protocol.errors import InvalidRequest
from protocol.openai import CHAT_PATH
from protocol.request_fields import RequestField
from protocol.request_table import FIELDS
from proxy.relay.bodies import RequestBody
from proxy.relay.media import EncodedMedia, Reference
from proxy.relay.message_keys import _root
from proxy.relay.request import ClientRequest
from tests.unit.proxy.test_relay_bodies import GRID, image, loads, user

Json = dict[str, Any]
TURNS = user(image("data:,x"))


def parsed(*, allowed: bool = False, **fields: Any) -> RequestBody:
    body = json.dumps({"messages": TURNS, **fields}).encode()
    request = RequestBody.parse(body, references=allowed)
    request.find_media(32)
    return request


def prefill(**fields: Any) -> Json:
    found: Json = loads(parsed(**fields).prefill_body(None, references=False))
    return found


def decode(**fields: Any) -> Json:
    handed = {"remote_host": "h"}
    found: Json = loads(parsed(**fields).decode_body(None, handed, references=False))
    return found


def one_token_first(name: str) -> Callable[[], None]:
    def probe() -> None:
        assert prefill(**{name: 7})[name] == 1 and decode(**{name: 7})[name] == 7

    return probe


def later(name: str, value: Any) -> Callable[[], None]:
    def probe() -> None:
        assert name not in prefill(**{name: value}) and decode(**{name: value})[name] == value

    return probe


def keyed(name: str, value: Any) -> Callable[[], None]:
    def probe() -> None:
        assert _root(parsed(**{name: value}).fields) != _root(parsed().fields)
        assert prefill(**{name: value})[name] == decode(**{name: value})[name] == value

    return probe


def encoded(name: str, value: Any) -> Callable[[], None]:
    def probe() -> None:
        request = parsed(**{name: value})
        assert loads(request.encode_body(request.items[0]))[name] == value

    return probe


def whole(**fields: Any) -> Callable[[], None]:
    def probe() -> None:
        assert parsed(**fields).scores_prompt and not parsed().scores_prompt

    return probe


def header_alone(name: str, header: str) -> Callable[[], None]:
    def probe() -> None:
        body = json.dumps({"messages": TURNS, name: "x"}).encode()
        unnamed = ClientRequest(CHAT_PATH, {}, body)
        named = ClientRequest(CHAT_PATH, {header.encode(): b"y"}, body)
        assert "x" not in (unnamed.session, unnamed.request_id.decode())
        assert "y" in (named.session, named.request_id.decode())
        assert decode(**{name: "x"})[name] == "x"

    return probe


def messages() -> None:
    request = parsed()
    (item,) = request.items
    assert loads(request.encode_body(item))["messages"] == TURNS
    media = EncodedMedia([(item, Reference("ab", {"metadata": GRID}))])
    sent = loads(request.decode_body(media, None, references=True))
    (part,) = sent["messages"][0]["content"]
    assert part == {"type": "image_embeds", "image_embeds": GRID, "uuid": "ab"}


def model() -> None:
    request = parsed(model="mine")
    request.rename_model("theirs")
    assert loads(request.decode_body(None, None, references=False))["model"] == "theirs"


def stream() -> None:
    assert prefill(stream=True)["stream"] is False and decode(stream=True)["stream"] is True
    with pytest.raises(InvalidRequest) as caught:
        parsed(stream=1)
    assert caught.value.param == "stream"


def priority() -> None:
    assert parsed(priority=3).priority(0) == decode(priority=3)["priority"] == 3
    with pytest.raises(InvalidRequest) as caught:
        parsed(priority=-1).priority(0)
    assert caught.value.param == "priority"


def return_token_ids() -> None:
    body = parsed(return_token_ids=False).decode_body(None, None, references=False, ids=True)
    assert loads(body)["return_token_ids"] is True


def kv_transfer_params() -> None:
    assert decode(kv_transfer_params={"x": 1})["kv_transfer_params"] == {"remote_host": "h"}
    assert b"kv_transfer_params" not in b"".join(parsed(kv_transfer_params={"x": 1}).bare)


def ec_transfer_params() -> None:
    for allowed in (False, True):
        request = parsed(ec_transfer_params={"other": {"a": 1}}, allowed=allowed)
        media = EncodedMedia([(request.items[0], Reference("ab", {"metadata": GRID}))])
        sent = loads(request.decode_body(media, None, references=True))["ec_transfer_params"]
        assert (sent.get("other") == {"a": 1}) is allowed and sent["ab"]["metadata"] == GRID
        assert (b"ec_transfer_params" in b"".join(request.bare)) is allowed


PROBES: dict[str, Callable[[], None]] = {
    **{probe.__name__: probe for probe in (
        messages, model, stream, priority, return_token_ids, kv_transfer_params, ec_transfer_params,
    )},
    **{name: one_token_first(name) for name in ("max_tokens", "max_completion_tokens")},
    **{name: later(name, 2) for name in ("n", "best_of", "min_tokens")},
    "stream_options": later("stream_options", {"include_usage": True}),
    "echo": whole(echo=True, logprobs=0),
    "prompt_logprobs": whole(prompt_logprobs=0),
    "tools": keyed("tools", [{"type": "function"}]),
    "cache_salt": keyed("cache_salt", "s"),
    "chat_template": keyed("chat_template", "x"),
    "chat_template_kwargs": keyed("chat_template_kwargs", {"a": 1}),
    "mm_processor_kwargs": encoded("mm_processor_kwargs", {"max_pixels": 65536}),
    "media_io_kwargs": encoded("media_io_kwargs", {"video": {"fps": 1}}),
    "request_id": header_alone("request_id", "x-request-id"),
    "session_id": header_alone("session_id", "x-session-id"),
}  # fmt: skip


def test_every_note_of_the_relay_has_a_probe() -> None:
    assert set(PROBES) == {row.name for row in FIELDS if row.openai}


@pytest.mark.parametrize("name", sorted(PROBES))
def test_the_relay_does_what_the_note_says(name: str) -> None:
    PROBES[name]()


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row.name) for row in FIELDS if not row.openai]
)
def test_the_relay_passes_on_what_has_no_note(row: RequestField) -> None:
    request = parsed(**{row.name: row.example})
    assert prefill(**{row.name: row.example})[row.name] == row.example
    assert request.decode_body(None, None, references=False) == (request.raw,)


def test_which_notes_are_tested_elsewhere() -> None:
    """What becomes of agents' requests in tests.unit.proxy.test_stored_responses and
    tests.integration.test_relay_responses, of handles in tests.unit.proxy.test_app."""
    noted = {row.name for row in AGENT_FIELDS if row.openai}
    assert noted - set(PROBES) == {"previous_response_id", "store"}
    noted = {row.name for row in FIELDS if row.tokens}
    assert noted == {"kv_transfer_params", "ec_transfer_params"}
