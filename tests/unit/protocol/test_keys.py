"""Content keys: equal where content is equal, different where anything differs."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from protocol.keys import BlockKeyChain, block_key, block_keys, mm_hash, root_key
from protocol.kv_events import short_key
from protocol.types import MMItem

ROOT = root_key(model="m", revision="r")
TOKENS = st.lists(st.integers(0, 50_000), max_size=80)


def item(name: str, offset: int, length: int) -> MMItem:
    return MMItem(name, "image", offset, length)


@given(TOKENS, st.lists(st.integers(1, 9), max_size=9), st.integers(1, 16))
def test_growing_a_chain_equals_hashing_at_once(
    tokens: list[int], cuts: list[int], size: int
) -> None:
    chain = BlockKeyChain(ROOT, size, [item("a", 3, 5)])
    end = 0
    for cut in cuts:
        end = min(len(tokens), end + cut)
        chain.extend(tokens[:end])
    assert chain.extend(tokens) == block_keys(tokens, size, ROOT, [item("a", 3, 5)])
    assert len(chain.keys) == len(tokens) // size


@given(TOKENS, st.data())
def test_a_changed_token_changes_its_block_and_all_later_ones(
    tokens: list[int], data: st.DataObject
) -> None:
    keys = block_keys(tokens, 4, ROOT)
    if not keys:
        return
    place = data.draw(st.integers(0, len(keys) * 4 - 1))
    other = [*tokens]
    other[place] += 1
    changed = block_keys(other, 4, ROOT)
    same = [a == b for a, b in zip(keys, changed, strict=True)]
    assert same == [i < place // 4 for i in range(len(keys))]


def test_a_block_of_text_is_named_by_its_parent_and_tokens_alone() -> None:
    """Behind a picture without a grid too, and before one that comes later."""
    tokens = list(range(24))
    pictures = [item("a", 4, 4), MMItem("b", "image", 20, 4, (1, 4, 4))]
    for items in ([], pictures):
        keys = block_keys(tokens, 4, ROOT, items)
        for i in (0, 2, 3, 4):
            parent = keys[i - 1] if i else ROOT
            assert keys[i] == block_key(parent, tokens[4 * i : 4 * i + 4])


def test_pictures_with_equal_placeholders_have_different_blocks() -> None:
    tokens = [1, 2, *[9] * 8, 3, 4, 5, 6, 7, 8]
    red = block_keys(tokens, 4, ROOT, [item("red", 2, 8)])
    blue = block_keys(tokens, 4, ROOT, [item("blue", 2, 8)])
    assert all(a != b for a, b in zip(red, blue, strict=True))


def test_where_a_picture_stands_in_its_block_matters() -> None:
    tokens = [9] * 8
    assert block_keys(tokens, 8, ROOT, [item("a", 0, 4)]) != block_keys(
        tokens, 8, ROOT, [item("a", 1, 4)]
    )


def test_a_clip_at_another_pace_or_of_another_shape_is_another() -> None:
    """A client that names one by reference says both, and its tokens' places follow from them."""
    tokens = [9] * 8
    clip = MMItem("a", "video", 0, 8, (2, 4, 4), seconds_per_grid=1.0)
    others = (
        msgspec.structs.replace(clip, seconds_per_grid=0.5),
        msgspec.structs.replace(clip, grid=(4, 2, 4)),
        msgspec.structs.replace(clip, gaps=(3,)),
        msgspec.structs.replace(clip, gaps=(4,)),
    )
    keys = [block_keys(tokens, 8, ROOT, [one])[0] for one in (clip, *others)]
    assert len(set(keys)) == 5


def test_a_picture_of_another_shape_is_another_also_in_later_blocks() -> None:
    """A client that names one by reference says its grid, and positions follow from that."""
    tokens = [1, 2, *[9] * 8, *range(3, 9)]
    wide = MMItem("a", "image", 2, 8, (1, 4, 8))
    tall = msgspec.structs.replace(wide, grid=(1, 8, 4))
    keys, others = (block_keys(tokens, 4, ROOT, [one]) for one in (wide, tall))
    assert len(keys) == 4
    assert all(a != b for a, b in zip(keys, others, strict=True))


def test_short_keys_name_what_the_events_of_other_engines_say_too() -> None:
    """These name media by their hash and place alone; a master must know the blocks by both."""
    tokens = [9] * 12
    bare = MMItem("a", "video", 2, 8)
    clip = msgspec.structs.replace(bare, grid=(2, 4, 4), seconds_per_grid=0.5)
    said, full = (block_keys(tokens, 4, ROOT, [one]) for one in (bare, clip))
    assert [short_key(key) for key in full] == [short_key(key) for key in said]
    assert all(a != b for a, b in zip(full, said, strict=True))


def test_a_picture_after_a_block_does_not_change_it() -> None:
    tokens = [1, 2, 3, 4, 9, 9, 9, 9]
    plain = block_keys(tokens[:4], 4, ROOT)
    assert block_keys(tokens, 4, ROOT, [item("a", 4, 4)])[:1] == plain


def test_salt_and_model_keep_caches_apart() -> None:
    roots = {
        root_key(model="m", revision="r"),
        root_key(model="m", revision="r", cache_salt="tenant"),
        root_key(model="m", revision="s"),
        root_key(model="mr", revision=""),
    }
    assert len(roots) == 4


def test_mm_hash_covers_bytes_options_and_weights() -> None:
    base = {"modality": "image", "processor": {"size": 1}, "model": "m", "revision": "r"}
    names = {
        mm_hash(b"x", **base),  # type: ignore[arg-type]
        mm_hash(b"y", **base),  # type: ignore[arg-type]
        *(mm_hash(b"x", **{**base, key: "other"}) for key in ("modality", "model", "revision")),  # type: ignore[arg-type]
        mm_hash(b"x", **{**base, "processor": {"size": 2}}),  # type: ignore[arg-type]
    }
    assert len(names) == 6
    assert all(len(name) == 64 for name in names)
