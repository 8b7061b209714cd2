"""How late other masters hear of changes, by messages that come back."""

from collections import Counter

from services.master.replication.messages import Left
from services.master.replication.outbox import Outbox, Staleness


def test_a_message_counts_from_its_oldest_change_until_it_comes_back() -> None:
    seen: list[float] = []
    staleness = Staleness(seen.append)
    staleness.sent(b"one", 10.0)
    staleness.sent(b"two", 11.0)
    staleness.heard(b"one", 10.5)
    staleness.heard(b"two", 11.25)
    assert seen == [0.5, 0.25]


def test_lost_and_foreign_messages_count_for_nothing() -> None:
    seen: list[float] = []
    staleness = Staleness(seen.append)
    for number in range(3):
        staleness.sent(b"%d" % number, float(number))
    staleness.heard(b"1", 3.0)
    assert seen == [2.0], "the first was lost"
    staleness.heard(b"0", 4.0)
    staleness.heard(b"2", 5.0)
    assert seen == [2.0, 3.0], "what is unknown loses no other"
    for _ in range(5000):
        staleness.sent(b"x", 0.0)
    assert len(staleness._sent) <= 1000


def test_an_outbox_knows_since_when_it_has_something_to_tell() -> None:
    outbox = Outbox(lambda: None, Counter())
    outbox.put(Left("w"), connected=True)
    first = outbox.since
    outbox.put(Left("v"), connected=True)
    assert outbox.since == first > 0.0
    outbox.take()
    outbox.put(Left("u"), connected=True)
    assert outbox.since > first


def test_a_message_that_told_of_nothing_loses_no_other() -> None:
    delays: list[float] = []
    staleness = Staleness(delays.append)
    staleness.sent(b"change", 1.0)
    staleness.heard(b"hello", 2.0)
    staleness.heard(b"change", 3.0)
    assert delays == [2.0]
