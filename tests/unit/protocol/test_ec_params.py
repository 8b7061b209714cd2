"""Entries of `ec_transfer_params` by the client's name of an item, and by its content."""

import pytest

from protocol.encoder_cache import by_content, content_name, is_mm_hash, named_entry, reported

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
