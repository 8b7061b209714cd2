"""Following the registry by version ends up at the same view as asking for all of it."""

from hypothesis import given, settings
from hypothesis import strategies as st

from services.master.fleet.changelog import Changelog

names = st.sampled_from([f"w{i}" for i in range(6)])
steps = st.lists(st.tuples(st.sampled_from(["note", "drop", "ask"]), names), max_size=60)


@settings(max_examples=100, deadline=None)
@given(steps)
def test_changes_since_a_version_lead_to_the_whole(found: list[tuple[str, str]]) -> None:
    changelog, there = Changelog(), dict[str, int]()
    view, cursor = dict[str, int](), changelog.cursor
    for number, (kind, name) in enumerate([*found, ("ask", "")]):
        if kind == "note":
            there[name] = number
            changelog.note(name)
        elif kind == "drop" and name in there:
            del there[name]
            changelog.drop(name)
        elif kind == "ask":
            changes = changelog.since(cursor)
            assert changes is not None
            came, gone = changes
            assert not set(came) & set(gone)
            view.update((n, there[n]) for n in came)
            for left in gone:
                view.pop(left, None)
            cursor = changelog.cursor
            assert view == there
            assert changelog.since(cursor) == ([], [])


def test_departures_are_remembered_within_bounds() -> None:
    told: list[int] = []
    changelog = Changelog(lambda: told.append(1))
    start = changelog.cursor
    for i in range(10_000):
        changelog.note(f"w{i}")
        changelog.drop(f"w{i}")
    assert len(told) == 20_000
    assert len(changelog._gone_at) <= 4096 and not changelog._changed_at
    assert changelog.since(start) is None, "a proxy that was away for so long gets all"
    changelog.note("w")
    lately = changelog.cursor
    changelog.drop("w")
    assert changelog.since(lately) == ([], ["w"])


def test_who_left_on_purpose_is_told_from_who_vanished() -> None:
    changelog = Changelog()
    for name in "vw":
        changelog.note(name)
    changelog.drop("v")
    changelog.drop("w", retired=True)
    assert changelog.retired == {"w"}
    changelog.note("w")
    changelog.drop("w")
    assert not changelog.retired, "it has come back, and has vanished since"
    for i in range(5000):
        changelog.drop(f"w{i}", retired=True)
    assert changelog.retired == changelog._gone_at.keys()


def test_versions_of_another_start_and_nonsense_mean_nothing() -> None:
    changelog = Changelog()
    changelog.note("w")
    ours = (f"{changelog.epoch}-{end}" for end in ("", "-1", "9", "\u0661", "1" * 5000))
    for cursor in ("", "-", "x-1", *ours):
        assert changelog.since(cursor) is None
    assert Changelog().since(changelog.cursor) is None
