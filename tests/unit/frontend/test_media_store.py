"""Media of requests under way: bounded in memory, in files beyond, gone with the request."""

import asyncio
import gc
import threading
from pathlib import Path

import pytest

from protocol.errors import ConfigError, Unavailable
from protocol.generate import decode_encode, encode_encode
from protocol.types import EncodeItem, EncodeRequest
from services.frontend.config import MediaConfig
from services.frontend.media.store import MediaStore
from tests.support.frontend_helpers import chat, frontend, image_part, picture, user, write_model


def test_bytes_beyond_the_bound_go_to_files_and_leave_with_their_holder(tmp_path: Path) -> None:
    store = MediaStore(10, tmp_path)
    gc.collect()  # what other tests have left may have files open
    descriptors = sum(1 for _ in Path("/proc/self/fd").iterdir())
    held = [store.keep(bytes([i]) * 4) for i in range(4)]
    assert [bytes(one) for one in held] == [bytes([i]) * 4 for i in range(4)]
    assert (store.in_memory, store.in_files) == (8, 8)
    assert list(tmp_path.iterdir()) == [], "the files have no names"
    del held[0]
    assert bytes(store.keep(b"abcdef")) == b"abcdef"
    held.clear()
    gc.collect()
    assert (store.in_memory, store.in_files) == (0, 0)
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == descriptors


@pytest.mark.parametrize("bound", [0, 1 << 20])
def test_what_is_kept_travels_like_bytes(bound: int, tmp_path: Path) -> None:
    kept = MediaStore(bound, tmp_path).keep(b"a picture")
    body = encode_encode(EncodeRequest("r", [EncodeItem("x" * 32, "image", 1, (1, 1, 1), kept)]))
    assert decode_encode(body).items[0].data == b"a picture"


def test_a_place_without_room_refuses(tmp_path: Path) -> None:
    store = MediaStore(0, tmp_path / "nowhere")
    with pytest.raises(Unavailable, match="media"):
        store.keep(b"x")
    assert (store.in_memory, store.in_files) == (0, 0)
    with pytest.raises(ConfigError, match="--media-spill-path"):
        MediaConfig(spill_folder=tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="--media-memory-bytes"):
        MediaConfig(memory_bytes=-1)


def test_many_threads_keep_the_count(tmp_path: Path) -> None:
    store = MediaStore(50, tmp_path)

    def work() -> None:
        for size in range(1, 60):
            kept = store.keep(bytes(size))
            assert len(kept) == size

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (store.in_memory, store.in_files) == (0, 0)


def test_a_request_holds_its_pictures_until_it_is_over(tmp_path: Path) -> None:
    """Also those in files are what the encoder gets."""
    data = picture(60, 40)
    front = frontend(write_model("qwen2_5_vl", tmp_path / "model"), media={"memory_bytes": 1})
    messages = user("a", image_part(data), image_part(picture(30, 90)))
    rendered = asyncio.run(front.render_chat(chat(messages), request_id="r"))
    store = front._items.store
    assert store.in_files > len(data) and store.in_memory == 0
    assert bytes(rendered.media[rendered.generate.mm_items[0].mm_hash]) == data
    del rendered
    gc.collect()
    assert store.in_files == 0
