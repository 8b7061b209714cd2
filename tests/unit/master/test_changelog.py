"""Following the registry by version ends up at the same view as asking for all of it."""

from hypothesis import given, settings
from hypothesis import strategies as st

from services.master.fleet.changelog import Roster

names = st.sampled_from([f"w{i}" for i in range(6)])
steps = st.lists(st.tuples(st.sampled_from(["note", "drop", "ask"]), names), max_size=60)


@settings(max_examples=200, deadline=None)
@given(steps)
def test_changes_since_a_version_lead_to_the_whole(found: list[tuple[str, str]]) -> None:
    roster, there = Roster(), dict[str, int]()
    view, cursor = dict[str, int](), roster.cursor
    for number, (kind, name) in enumerate([*found, ("ask", "")]):
        if kind == "note":
            there[name] = number
            roster.note(name)
        elif kind == "drop" and name in there:
            del there[name]
            roster.drop(name)
        elif kind == "ask":
            changes = roster.since(cursor)
            assert changes is not None
            came, gone = changes
            assert not set(came) & set(gone)
            view.update((n, there[n]) for n in came)
            for left in gone:
                view.pop(left, None)
            cursor = roster.cursor
            assert view == there
            assert roster.since(cursor) == ([], [])


def test_departures_are_remembered_within_bounds() -> None:
    roster = Roster()
    start = roster.cursor
    told: list[int] = []
    roster.changed = lambda: told.append(1)
    for i in range(10_000):
        roster.note(f"w{i}")
        roster.drop(f"w{i}")
    assert len(told) == 20_000
    assert len(roster._gone_at) <= 4096 and not roster._changed_at
    assert roster.since(start) is None, "somebody who was away for so long gets everybody"
    roster.note("w")
    lately = roster.cursor
    roster.drop("w")
    assert roster.since(lately) == ([], ["w"])


def test_versions_of_another_life_and_nonsense_mean_nothing() -> None:
    roster = Roster()
    roster.note("w")
    for cursor in ("", "-", "x-1", f"{roster.epoch}-", f"{roster.epoch}--1", f"{roster.epoch}-9",
                   f"{roster.epoch}-\u0661", f"{roster.epoch}-{'1' * 5000}"):  # fmt: skip
        assert roster.since(cursor) is None
    assert Roster().since(roster.cursor) is None
