"""Long base64 in slices gives what it gives at once."""

import base64
from pathlib import Path

import pytest

from protocol.errors import InvalidRequest
from services.frontend.media.off_loop import beginning, from_base64
from tests.support.frontend_helpers import frontend, render, user, write_model

SLICE = 1 << 18
DATA = bytes(range(256)) * 3000


@pytest.fixture
def rests(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How often other threads could go on."""
    found: list[float] = []
    monkeypatch.setattr("services.frontend.media.off_loop.time.sleep", found.append)
    return found


@pytest.mark.parametrize("size", [0, 1, 2, 3, SLICE * 3 // 4, SLICE * 3 // 4 + 1, len(DATA)])
def test_it_is_what_was_encoded(size: int, rests: list[float]) -> None:
    text = base64.b64encode(DATA[:size]).decode()
    assert from_base64(text) == DATA[:size]
    assert len(rests) == max(0, len(text) - 1) // SLICE
    wrapped = base64.encodebytes(DATA[:size]).decode().rstrip("=\n")
    assert from_base64(wrapped) == DATA[:size]
    assert from_base64(text.replace("=", "%3D").replace("+", "%2B")) == DATA[:size]


@pytest.mark.parametrize("place", [SLICE - 4, SLICE + 100, 2 * SLICE - 4])
def test_padding_in_the_middle_is_no_base64(place: int, rests: list[float]) -> None:
    text = base64.b64encode(DATA).decode()
    with pytest.raises(ValueError):
        from_base64(text[:place] + "AA==" + text[place + 4 :])


@pytest.mark.parametrize("bad", ["A", "AB!D" + "AAAA" * SLICE, "AAAA" * SLICE + "A"])
def test_what_is_no_base64_is_an_error(bad: str, rests: list[float]) -> None:
    with pytest.raises(ValueError):
        from_base64(bad)


def test_it_begins_as_the_whole_does() -> None:
    text = base64.b64encode(DATA).decode()
    assert DATA.startswith(beginning(f"data:image/png;base64,{text}"))
    assert len(beginning(f"DATA:;BASE64,{text}")) == 48
    for other in (f"data:image/png,{text}", "data:;base64,AAAA", f"http://x;base64,{text}",
                  f"data:;base64,\n{text}"):  # fmt: skip
        assert beginning(other) == b""


def test_a_form_that_is_not_known_is_refused_before_it_is_decoded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def decoded(text: str, begin: int) -> bytes:
        raise AssertionError(f"{len(text)} characters were decoded")

    monkeypatch.setattr("services.frontend.media.fetching.from_base64", decoded)
    front = frontend(write_model("qwen2_5_vl", tmp_path))
    url = "data:image/png;base64," + base64.b64encode(b"qoif" + bytes(1 << 21)).decode()
    part = {"type": "image_url", "image_url": {"url": url}}
    with pytest.raises(InvalidRequest, match="no picture of a known format") as caught:
        render(front, user(part))
    assert caught.value.code == "invalid_image" and "image_url" in str(caught.value.param)
