"""What `bench_fleet` asks and how it judges."""

import json

import pytest

from benchmarks.bench_fleet.load import Answer
from benchmarks.bench_fleet.report import (
    ROUND_ROBIN,
    ROUTER,
    WITH_MASTER,
    Measured,
    measured,
    rows,
    sustained,
)
from benchmarks.bench_fleet.round_robin import _items, _refer, _single
from benchmarks.bench_fleet.trace import Drawing

USED = {"items": 10.0, "item_hits": 4.0, "tokens": 100.0, "token_hits": 25.0, "bytes": 5e3}


def test_every_contender_is_asked_the_same() -> None:
    first, second = (Drawing(7, 10).trace(5.0, 20.0) for _ in range(2))
    assert first == second
    assert 60 < len(first) < 140
    assert [ask.at for ask in first] == sorted(ask.at for ask in first)
    urls, systems = [], set()
    for ask in first:
        system, user = json.loads(ask.body)["messages"]
        urls += [p["image_url"]["url"] for p in user["content"] if p["type"] == "image_url"]
        systems.add(system["content"])
    assert len(urls) == 3 * len(first)
    assert len(set(urls)) < 0.7 * len(urls), "pictures come again"
    assert len(systems) <= 24


def test_only_what_was_in_time_and_settled_counts() -> None:
    answers = [
        Answer(0.0, 200, 0.1, 0.3, 11),  # before the caches had settled
        Answer(2.0, 200, 0.5, 0.7, 11),
        Answer(3.0, 200, 1.5, 1.7, 11),  # its first token was late
        Answer(4.0, 200, 0.5, 1.5, 11),  # its tokens were slow
        Answer(5.0, 503),
        Answer(6.0, 0),
    ]
    found = measured(1.0, answers, 1.0, 11.0, USED)
    assert (found.goodput, found.share) == (pytest.approx(0.1), pytest.approx(0.2))
    assert (found.refused, found.broken) == (1, 1)
    assert (found.item_hits, found.prefix_hits) == (0.4, 0.25)


def at(rate: float, share: float) -> Measured:
    return Measured(rate, rate * share, share, 0, 0, 0, 0, 0, 10, 0, 0, 0)


def test_the_rate_that_is_sustained_lies_between_those_measured() -> None:
    assert sustained([at(4, 1.0), at(8, 0.95), at(10, 0.85)]) == pytest.approx(9.0)
    assert sustained([at(4, 0.5)]) == 0.0
    assert sustained([at(4, 1.0)]) == 4.0


def test_bars_are_those_of_a_long_run() -> None:
    curves = {
        ROUND_ROBIN: [at(4, 0.95), at(8, 0.2), at(16, 0.1), at(32, 0.0)],
        ROUTER: [at(4, 0.95), at(8, 0.85), at(16, 0.1), at(32, 0.0)],
        WITH_MASTER: [at(4, 1.0), at(8, 0.95), at(16, 0.4), at(32, 0.1)],
    }
    judged = {row.name: row.holds for row in rows(curves, judged=True)}
    assert judged["highest rate with 90 % within the objectives, beside round robin"] is False
    assert judged["highest rate with 90 % within the objectives, beside vllm-router"] is True
    assert judged["goodput at twice that rate, beside its peak"] is False
    assert all(row.holds is None for row in rows(curves, judged=False))
    curves[WITH_MASTER] = [at(4, 1.0), at(8, 1.0), at(16, 1.0), at(32, 1.0)]
    (last,) = [row for row in rows(curves, judged=True) if "twice" in row.name]
    assert last.holds is None and last.name.endswith("(not offered)")


def test_the_peer_names_items_and_refers_to_them() -> None:
    (ask, *_) = Drawing(7, 10).trace(5.0, 5.0)
    body = json.loads(ask.body)
    parts = _items(body)
    assert len(parts) == 3 and all(len(part["uuid"]) == 64 for part in parts)
    again = _items(json.loads(ask.body))
    assert [part["uuid"] for part in again] == [part["uuid"] for part in parts]
    for part in parts:
        _refer(part, {"metadata": {"image_grid_thw": [1, 2, 2]}})
    assert "base64" not in json.dumps(body)
    assert _single(body)["stream"] is False and body["stream"] is True
