"""Names that come again, among the last ones."""

from services.engine.scheduling.encode_jobs import SeenBefore


def test_only_the_last_names_are_remembered() -> None:
    seen = SeenBefore(2)
    for name, count in (("a", 0), ("b", 0), ("a", 1), ("c", 1), ("a", 2), ("b", 2), ("c", 2)):
        seen.add(name)
        assert seen.count == count, name
