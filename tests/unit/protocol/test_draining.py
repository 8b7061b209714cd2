"""What a worker that drains answers to encode calls."""

import pytest

from protocol.encoder_cache import held_only
from protocol.errors import NotServing
from protocol.types import EncodeItem, EncodeOutput, EncodeRequest


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
