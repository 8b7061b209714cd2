"""Boxes of MP4 files that claim more than they can have."""

import pytest

from services.frontend.clips.limits import BadBoxes, check_boxes, cut_off
from tests.support.clips import clip, sound


def box(kind: bytes, content: bytes) -> bytes:
    return (8 + len(content)).to_bytes(4, "big") + kind + content


def large(kind: bytes, content: bytes) -> bytes:
    return b"\0\0\0\1" + kind + (16 + len(content)).to_bytes(8, "big") + content


def moov(inner: bytes) -> bytes:
    for kind in (b"stbl", b"minf", b"mdia", b"trak", b"moov"):
        inner = box(kind, inner)
    return inner


def sizes(each: int, count: int) -> bytes:
    return box(b"stsz", b"\0" * 4 + each.to_bytes(4, "big") + count.to_bytes(4, "big"))


FILES = [clip(1).data, clip(1, form="mov").data, clip(2, frames=40, movflags="faststart").data,
         clip(3, movflags="frag_keyframe+empty_moov").data, sound()]  # fmt: skip


@pytest.mark.parametrize("data", FILES)
def test_files_as_they_are_written(data: bytes) -> None:
    check_boxes(data)
    for cut in range(0, len(data), 97):
        check_boxes(data[:cut])


@pytest.mark.parametrize("data", FILES)
def test_files_that_were_cut_off(data: bytes) -> None:
    assert not cut_off(data)
    assert not cut_off(data + b"a camera's own trailer")
    assert all(cut_off(data[: len(data) * tenths // 10]) for tenths in range(1, 10))


def test_boxes_that_lack_a_byte() -> None:
    begin = box(b"ftyp", b"mp42") + box(b"free", b"")
    for kind in (b"mdat", b"moov", b"moof"):
        for whole in (begin + box(kind, bytes(20)), begin + large(kind, bytes(20))):
            assert cut_off(whole[:-1]) and not cut_off(whole)
    to_the_end = begin + b"\0\0\0\0mdat" + bytes(20)
    assert not cut_off(to_the_end) and not cut_off(to_the_end[:-1])
    assert not cut_off((begin + box(b"udta", bytes(20)))[:-1])


@pytest.mark.parametrize(
    "data",
    [
        moov(sizes(1, 1 << 30)),
        large(b"moov", moov(sizes(4, 1 << 31))[8:]),
        box(b"ftyp", b"mp42") + box(b"moof", box(b"traf", box(b"trun", b"\0\0\0\0\x40\0\0\0"))),
        (0).to_bytes(4, "big") + moov(sizes(9, 1 << 20))[4:],
    ],
)
def test_more_samples_than_bytes(data: bytes) -> None:
    with pytest.raises(BadBoxes, match="more samples than bytes"):
        check_boxes(data)


def test_sizes_that_stand_in_the_file_need_no_bound() -> None:
    check_boxes(moov(sizes(0, 1 << 30)))


def test_what_is_hidden_or_endless() -> None:
    with pytest.raises(BadBoxes, match="compressed"):
        check_boxes(box(b"moov", box(b"cmov", b"")))
    with pytest.raises(BadBoxes, match="more than 65536 boxes"):
        check_boxes(box(b"free", b"") * 65_537)
    check_boxes(b"\0\0\0\2free" * 100)
