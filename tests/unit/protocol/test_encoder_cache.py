"""Entries of `ec_transfer_params` by name and content; what a worker that drains still answers."""

import pytest

from protocol.encoder_cache import (
    by_content,
    content_name,
    held_only,
    is_mm_hash,
    named_entry,
    reported,
)
from protocol.errors import NotServing
from protocol.types import EncodeItem, EncodeOutput, EncodeRequest

HASH = "ab" * 32
ENTRY = {"metadata": {"image_grid_thw": [1, 4, 4]}, "peer_port": 1}


def test_an_entry_under_a_uuid_says_which_content_it_is() -> None:
    params = {"my/picture": named_entry("my/picture", HASH, ENTRY)}
    assert content_name(params, "my/picture") == HASH
    assert reported(params, "my/picture")["peer_port"] == 1
    assert by_content(params) == {HASH: params["my/picture"], **params}


def test_an_entry_under_its_own_hash_is_as_before() -> None:
    params = {HASH: named_entry(HASH, HASH, ENTRY), "ec_items": [1]}
    assert params[HASH] == ENTRY
    assert by_content(params) == {**params, "ec_items": [1]}
    assert content_name(params, HASH) == HASH
    assert content_name(None, "x") == "x" and reported(None, "x") == {} and by_content(None) is None


@pytest.mark.parametrize("name", ["../x", ".x", "", "a b", "x" * 257, 5, None, ["a"]])
def test_a_name_that_no_file_may_have_is_no_hash(name: object) -> None:
    assert not is_mm_hash(name)
    params = {"u": {**ENTRY, "mm_hash": name}}
    assert set(by_content(params) or ()) == {"u"}


async def held(request: EncodeRequest) -> list[EncodeOutput]:
    """An engine that has "a"; nothing may be encoded."""
    assert all(item.data is None for item in request.items)
    return [
        EncodeOutput(request.request_id, i.mm_hash, {"at": "here"}, cached=True)
        if i.mm_hash == "a"
        else EncodeOutput(request.request_id, i.mm_hash, missing=True)
        for i in request.items
    ]


def asking(*items: tuple[str, bytes | None]) -> EncodeRequest:
    return EncodeRequest("r", [EncodeItem(name, "image", 4, data=data) for name, data in items])


async def test_what_it_has_is_handed_out_whether_or_not_it_is_sent() -> None:
    for data in (None, b"picture"):
        (output,) = await held_only(asking(("a", data)), held)
        assert output.params == {"at": "here"}


async def test_what_it_has_not_is_missing_if_it_was_not_sent() -> None:
    outputs = await held_only(asking(("a", None), ("b", None)), held)
    assert [output.missing for output in outputs] == [False, True]


async def test_what_it_should_encode_is_refused() -> None:
    with pytest.raises(NotServing) as refused:
        await held_only(asking(("a", b"x"), ("b", b"x")), held)
    assert refused.value.retry_after_s == 1.0
