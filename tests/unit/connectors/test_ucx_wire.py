"""Messages between UCX transports, and how ranges are grouped into them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.transports.base import Range
from connectors.transports.ucx_wire import (
    BUNDLE,
    DATA,
    DIRECT,
    MAX_REQUEST,
    REFUSAL,
    REQUEST,
    VERSION,
    StopRequest,
    UcxDescription,
    check_request,
    open_description,
    open_request,
    plan,
    read_request,
    seal,
    tag,
    transfer_mask,
    untag,
)
from protocol.errors import IncompatiblePeer, TransferError

REGION = 64 << 20


@st.composite
def scattered(draw: st.DrawFn) -> list[Range]:
    """Disjoint ranges in any order, some of them contiguous on both sides."""
    sizes = draw(st.lists(st.integers(1, 3 * DIRECT), min_size=1, max_size=40))
    gaps = draw(st.lists(st.sampled_from([0, 0, 1]), min_size=len(sizes), max_size=len(sizes)))
    ranges, at = [], 0
    for size, gap in zip(sizes, gaps, strict=True):
        at += gap
        ranges.append(Range(at, at + 5 * gap, size))
        at += size
    return draw(st.permutations(ranges))


@given(scattered(), st.booleans())
def test_plan_covers_the_ranges(ranges: list[Range], bundles: bool) -> None:
    messages = plan(ranges, bundles)
    pieces = [r for message in messages for r in message]
    moved = {(r.remote + i, r.local + i) for r in pieces for i in (0, r.size - 1)}
    assert moved <= {(r.remote + i, r.local + i) for r in ranges for i in (0, r.size - 1)}
    assert sum(r.size for r in pieces) == sum(r.size for r in ranges)
    assert len({r.remote for r in pieces}) == len(pieces)
    request = read_request(b"", 0, 0, "kv", messages)
    check_request(request, REGION, host=bundles)


@given(scattered())
def test_plan_bundles_small_ranges_only(ranges: list[Range]) -> None:
    for message in plan(ranges, bundles=True):
        if len(message) > 1:
            assert all(r.size < DIRECT for r in message)
            assert sum(r.size for r in message) <= BUNDLE
    assert all(len(message) == 1 for message in plan(ranges, bundles=False))


def test_contiguous_blocks_are_one_message() -> None:
    blocks = [Range(i * 4096, 8192 + i * 4096, 4096) for i in range(100)]
    assert plan(blocks, bundles=True) == [[Range(0, 8192, 409600)]]


@given(
    st.sampled_from([REQUEST, DATA, REFUSAL]),
    st.integers(0, transfer_mask()),
    st.integers(0, (1 << 20) - 1),
)
def test_tags(kind: int, transfer: int, index: int) -> None:
    assert untag(tag(kind, transfer, index)) == (kind, transfer, index)
    assert tag(kind, transfer, index) < 1 << 64


@given(st.data())
def test_a_damaged_message_is_refused(data: st.DataObject) -> None:
    message = StopRequest(b"address", 0, 7)
    sealed = bytearray(seal(message))
    assert open_request(bytes(sealed)) == message
    place = data.draw(st.integers(0, len(sealed) - 1))
    sealed[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(TransferError):
        open_request(bytes(sealed))


def test_another_version_is_named() -> None:
    sealed = bytearray(seal(UcxDescription(b"address", "kv", 8, True)))
    sealed[12] = VERSION + 1
    with pytest.raises(IncompatiblePeer, match="version 2, ours is 1"):
        open_description(bytes(sealed))


def test_too_many_ranges() -> None:
    messages = [[Range(i, i, 1) for i in range(MAX_REQUEST // 20)]]
    with pytest.raises(TransferError, match="too many"):
        read_request(b"", 0, 0, "kv", messages)


def test_the_largest_request_fits() -> None:
    count = (MAX_REQUEST - 65536) // 22
    messages = [[Range(1 << 62, 0, 1 << 62) for _ in range(count)]]
    assert len(seal(read_request(bytes(200), 0, 1, "kv", messages))) <= MAX_REQUEST
