"""Pictures that an encoder keeps to encode them again."""

from protocol.types import EncodeItem, EncodeOutput
from services.worker.media_cache import MediaCache


def item(name: str, data: bytes | None = None) -> EncodeItem:
    return EncodeItem(name, "image", 4, data=data)


def gone(*names: str) -> list[EncodeOutput]:
    return [EncodeOutput("r", name, missing=True) for name in names]


def found(cache: MediaCache, *names: str) -> dict[str, bytes | None]:
    again = cache.missing([item(name) for name in names], gone(*names))
    return {one.mm_hash: one.data for one in again}


def test_what_was_used_last_stays() -> None:
    cache = MediaCache(10)
    cache.keep([item("a", b"1234"), item("b", b"5678")])
    assert found(cache, "a") == {"a": b"1234"}
    cache.keep([item("c", b"9012")])
    assert cache.size == 8
    assert found(cache, "a", "b", "c") == {"a": b"1234", "c": b"9012"} and cache.hits == 3


def test_what_is_too_large_is_not_kept_and_pushes_nothing_out() -> None:
    cache = MediaCache(10)
    cache.keep([item("a", b"1234"), item("b", b"x" * 11), item("c", b""), item("d")])
    assert found(cache, "a", "b", "c", "d") == {"a": b"1234"} and cache.size == 4
    cache.keep([item("a", b"1234")])
    assert cache.size == 4, "counted once"


def test_only_what_the_engine_has_not_is_found() -> None:
    cache = MediaCache(10)
    cache.keep([item("a", b"1234")])
    assert cache.missing([item("a")], [EncodeOutput("r", "a", {}, cached=True)]) == []
    assert cache.hits == 0


def test_without_capacity_nothing_is_kept() -> None:
    cache = MediaCache(0)
    cache.keep([item("a", b"1")])
    assert not found(cache, "a") and cache.size == 0
