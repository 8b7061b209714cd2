"""What the relay asks each stage."""

import json
from typing import Any

import pytest

from protocol.errors import InvalidRequest
from proxy.relay.bodies import RequestBody
from proxy.relay.media import EncodedMedia, Reference
from proxy.upstream.answer import Body

BIG = "data:image/png;base64," + "A" * 10_000
GRID = {"image_grid_thw": [1, 4, 4]}


def parsed(*, allowed: bool = False, **fields: Any) -> RequestBody:
    request = RequestBody.parse(json.dumps(fields).encode(), references=allowed)
    request.find_media(32)
    return request


def loads(body: Body) -> Any:
    return json.loads(b"".join(body))


def user(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


ALL_KINDS = [
    {"type": "text", "text": "see"},
    image(BIG),
    {"type": "video_url", "video_url": {"url": "https://example.com/v.mp4"}},
    {"type": "image_embeds", "image_embeds": "b64", "uuid": "known"},
    {"type": "audio_url", "audio_url": {"url": "https://example.com/a.wav"}},
    {"type": "input_audio", "input_audio": {"data": "b64", "format": "wav"}},
    {"type": "image_url", "image_url": None, "uuid": "seen before"},
    image("https://example.com/i.png"),
]


def test_media_of_every_kind_is_found_in_its_place() -> None:
    request = parsed(messages=[{"role": "system", "content": "be brief"}, *user(*ALL_KINDS)])
    found = [(i.message, i.part, i.modality, i.index) for i in request.items]
    assert found == [
        (1, 1, "image", 0),
        (1, 2, "video", 0),
        (1, 4, "audio", 0),
        (1, 5, "audio", 1),
        (1, 7, "image", 3),
    ]
    assert [i.content["type"] for i in request.items] == [
        ALL_KINDS[i.part]["type"] for i in request.items
    ]


def test_too_many_items_are_refused() -> None:
    request = RequestBody.parse(json.dumps({"messages": user(*[image("x")] * 3)}).encode())
    with pytest.raises(InvalidRequest) as caught:
        request.find_media(2)
    assert caught.value.param == "messages"


def test_an_encoder_is_asked_for_one_item_alone() -> None:
    request = parsed(
        model="m", messages=user(*ALL_KINDS), mm_processor_kwargs={"max_pixels": 9}, seed=1
    )
    assert loads(request.encode_body(request.items[0])) == {
        "model": "m",
        "mm_processor_kwargs": {"max_pixels": 9},
        "messages": user(image(BIG)),
        "max_tokens": 1,
        "temperature": 0,
        "stream": False,
    }


def references(request: RequestBody, *names: str) -> EncodedMedia:
    entries = [
        Reference(
            name, {"modality": "image", "item_indices": [0], "metadata": GRID, "peer_port": 1}
        )
        for name in names
    ]
    return EncodedMedia(list(zip(request.items, entries, strict=True)))


def test_prefill_and_decode_get_references_for_media() -> None:
    text = {"type": "text", "text": "same?"}
    request = parsed(
        messages=user(image(BIG), text, image(BIG), image("x")), stream=True, max_tokens=9, n=2,
        max_completion_tokens=9, stream_options={"include_usage": True},
        ec_transfer_params={"k": {}}, allowed=True,
    )  # fmt: skip
    media = references(request, "h1", "h1", "h2")
    first = {"type": "image_embeds", "image_embeds": GRID, "uuid": "h1"}
    expected = user(first, text, first, {**first, "uuid": "h2"})
    entry = {"modality": "image", "metadata": GRID, "peer_port": 1}
    params = {
        "k": {},
        "h1": {**entry, "item_indices": [0, 1]},
        "h2": {**entry, "item_indices": [2]},
    }
    prefill = loads(request.prefill_body(media, references=True))
    assert prefill["messages"] == expected and prefill["ec_transfer_params"] == params
    assert prefill["kv_transfer_params"]["do_remote_decode"] is True
    assert (prefill["max_tokens"], prefill["max_completion_tokens"]) == (1, 1)
    assert prefill["stream"] is False
    assert not {"n", "stream_options"} & set(prefill)
    decode = loads(request.decode_body(media, {"remote_port": 5}, references=True))
    assert decode["messages"] == expected and decode["ec_transfer_params"] == params
    assert decode["kv_transfer_params"] == {"remote_port": 5}
    assert (decode["stream"], decode["max_tokens"], decode["n"]) == (True, 9, 2)
    whole = loads(request.prefill_body(media, references=False))
    one = {**image(BIG), "uuid": "h1"}
    assert whole["messages"] == user(one, text, one, {**image("x"), "uuid": "h2"})
    assert whole["ec_transfer_params"] == params


@pytest.mark.parametrize(
    "last", [image("x"), {"type": "image_url", "image_url": None, "uuid": "seen before"}]
)
def test_media_and_references_of_one_modality_are_never_mixed(last: dict[str, Any]) -> None:
    """vLLM refuses such a request."""
    clip = {"type": "video_url", "video_url": {"url": "https://example.com/v.mp4"}}
    request = parsed(messages=user(image(BIG), clip, last))
    video = {"modality": "video", "item_indices": [0], "metadata": {"video_grid_thw": [2, 4, 4]}}
    known = [Reference("h1", {"modality": "image", "metadata": GRID}), Reference("h2", video)]
    media = EncodedMedia(list(zip(request.items[:2], known, strict=True)))
    body = loads(request.prefill_body(media, references=True))
    named = {"type": "video_embeds", "video_embeds": video["metadata"], "uuid": "h2"}
    assert body["messages"] == user({**image(BIG), "uuid": "h1"}, named, last)
    assert set(body["ec_transfer_params"]) == {"h1", "h2"}


@pytest.mark.parametrize("given", [{"uuid": "mine"}, {"mm_processor_kwargs": {"max_pixels": 9}}])
def test_media_keep_the_name_that_their_worker_would_give_them(given: dict[str, Any]) -> None:
    """A client's own name stays, and vLLM would hash a name together with processor options."""
    part = {**image(BIG), **{key: value for key, value in given.items() if key == "uuid"}}
    request = parsed(messages=user(part), **given)
    whole = loads(request.prefill_body(references(request, "h1"), references=False))
    assert whole["messages"] == user(part)
    assert set(whole["ec_transfer_params"]) == {"h1"}


def test_a_body_that_needs_no_change_is_not_changed() -> None:
    body = b'{ "messages" : [{"role":"user","content":"\\u00e9 1.0"}],"temperature":1.50 }\n'
    request = RequestBody.parse(body)
    assert b"".join(request.decode_body(None, None, references=False)) == body
    handed = b"".join(request.decode_body(None, {"a": 1}, references=False))
    assert handed == body.rstrip()[:-1] + b',"kv_transfer_params":{"a":1}}'
    assert loads(
        (b"".join(RequestBody.parse(b"{}").decode_body(None, {"a": 1}, references=False)),)
    )


@pytest.mark.parametrize("handles", [5, "kv_transfer_params", [{}], False])
def test_handles_are_an_object(handles: Any) -> None:
    """No worker would say so: it never sees them."""
    with pytest.raises(InvalidRequest) as caught:
        parsed(messages=[], kv_transfer_params=handles)
    assert caught.value.param == "kv_transfer_params"


@pytest.mark.parametrize("handles", [{"remote_host": "10.0.0.1"}, None])
def test_handles_that_a_client_brings_go_nowhere(handles: Any) -> None:
    request = parsed(messages=[], kv_transfer_params=handles)
    assert loads(request.decode_body(None, None, references=False)) == {"messages": []}
    prefill = loads(request.prefill_body(None, references=False))
    assert prefill["kv_transfer_params"]["remote_host"] is None


def test_handles_that_a_client_brings_are_replaced() -> None:
    request = parsed(messages=[], kv_transfer_params={"mine": 1})
    assert loads(request.decode_body(None, {"a": 1}, references=False)) == {
        "messages": [],
        "kv_transfer_params": {"a": 1},
    }


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'"x"', b"{", b'{"stream":"yes"}', b"\xff", b"[" * 9999]
)
def test_what_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        RequestBody.parse(body)


@pytest.mark.parametrize("given", [-1, -1.0, "-1", " -1 ", "-1.5", -(1 << 40), -1e300, "-inf"])
def test_no_spelling_of_a_priority_evades_the_bound(given: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"at least 0 here, not .* --min-priority") as caught:
        parsed(priority=given).priority(0)
    assert caught.value.param == "priority"


@pytest.mark.parametrize(
    ("given", "found"),
    [(-5, -5), (0, 0), (7, 7), (None, 0), (1 << 40, 0), ("-5", 0), ("soon", 0), ([], 0), (True, 0)],
)
def test_a_priority_within_the_bound_decides_the_order(given: Any, found: int) -> None:
    """What is no whole number may be one to a worker, and does not decide here."""
    assert parsed(priority=given).priority(-5) == found
