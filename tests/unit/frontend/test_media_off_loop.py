"""Long base64 in slices gives what it gives at once; threads have bounds on what waits."""

import asyncio
import base64
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.errors import InvalidRequest, Unavailable
from services.frontend.clips.readers import BoundedThreads
from services.frontend.media.fetching import beginning, from_base64
from tests.conftest import Pass
from tests.support.frontend_helpers import frontend, render, user, write_model
from tests.support.waiting import eventually

SLICE = 1 << 18
DATA = bytes(range(256)) * 3000


@pytest.fixture
def rests(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How often other threads could go on."""
    found: list[float] = []
    monkeypatch.setattr("services.frontend.media.fetching.time.sleep", found.append)
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


@pytest.fixture
def threads() -> Iterator[BoundedThreads]:
    made = BoundedThreads(threads=1, waiting=1, patience_s=20.0, busy="too much waits")
    yield made
    made.close()


async def test_no_more_waits_than_may(threads: BoundedThreads) -> None:
    end = threading.Event()
    first, second = (asyncio.ensure_future(threads.run(end.wait)) for _ in range(2))
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="too much waits"):
        await threads.run(end.wait)
    end.set()
    assert await asyncio.gather(first, second) == [True, True]
    assert await threads.run(lambda: 3) == 3


async def test_what_has_waited_for_too_long_is_not_begun(
    threads: BoundedThreads, passes: Pass
) -> None:
    begun, end = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        end.wait()

    first = asyncio.ensure_future(threads.run(work))
    await eventually(begun.is_set)
    late = asyncio.ensure_future(threads.run(lambda: 3))
    await asyncio.sleep(0)
    passes(21.0)
    end.set()
    await first
    with pytest.raises(Unavailable, match="too much waits"):
        await late


async def test_what_is_given_up_is_not_begun(threads: BoundedThreads) -> None:
    end, done = threading.Event(), list[int]()
    first = asyncio.ensure_future(threads.run(end.wait))
    given_up = asyncio.ensure_future(threads.run(lambda: done.append(1)))
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.wait([given_up])
    end.set()
    await first
    await threads.run(lambda: done.append(2))
    assert done == [2]
