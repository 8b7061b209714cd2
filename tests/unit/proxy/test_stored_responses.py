"""Which worker has a response."""

import pytest

from protocol.errors import InvalidRequest
from proxy.fleet.worker import Breaker, Instance
from proxy.relay.stored_responses import StoredResponses, is_stored, previous_of


def worker(name: str) -> Instance:
    return Instance(f"http://{name}", "decode", Breaker())


def test_the_ones_not_named_for_longest_are_forgotten() -> None:
    stored, one = StoredResponses(most=2), worker("d0")
    for name in (b"resp_a", b"resp_b"):
        stored.note(b'{"id":"%b"}' % name, one, "t", streamed=False)
    assert stored.worker_of("resp_a", "t") is one
    stored.note(b'{"id":"resp_c"}', one, "t", streamed=False)
    assert len(stored) == 2 and stored.known("resp_a") and not stored.known("resp_b")
    stored.forget("resp_a")
    assert stored.worker_of("resp_a", "t") is None


def test_a_response_is_its_clients_and_goes_with_its_worker() -> None:
    stored, one = StoredResponses(), worker("d0")
    created = b'event: response.created\ndata: {"response": {"id" : "resp_x", "output": []}}\n\n'
    stored.note(created, one, "t", streamed=True)
    assert stored.worker_of("resp_x", "t") is one
    assert stored.known("resp_x") and stored.worker_of("resp_x", "u") is None
    one.removed = True
    assert stored.worker_of("resp_x", "u") is None and stored.known("resp_x")
    assert stored.worker_of("resp_x", "t") is None and not stored.known("resp_x")


def test_a_response_of_the_same_id_does_not_take_anothers_place() -> None:
    stored, first, second = StoredResponses(), worker("d0"), worker("d1")
    for one, tenant in ((first, "t"), (second, "u"), (second, "t")):
        stored.note(b'{"id":"resp_x"}', one, tenant, streamed=False)
        assert stored.worker_of("resp_x", "u") is None
    assert stored.worker_of("resp_x", "t") is second


def test_which_responses_are_stored() -> None:
    assert is_stored({}) and is_stored({"store": None}) and is_stored({"store": True})
    assert not is_stored({"store": False})


def test_what_is_no_response_is_not_noted() -> None:
    stored = StoredResponses()
    for answer in (b"", b"[1]", b'{"id": 1}', b'{"id":"%b"}' % (b"x" * 129), b"\xff"):
        stored.note(answer, worker("d0"), "t", streamed=False)
        stored.note(answer, worker("d0"), "t", streamed=True)
    assert len(stored) == 0


def test_the_response_before() -> None:
    """Beside any other fields, of any type."""
    assert previous_of({"previous_response_id": "resp_a", "id": 5, "store": "no"}) == "resp_a"
    assert previous_of({"previous_response_id": None}) == previous_of({}) == ""


@pytest.mark.parametrize("given", [5, ["resp_a"], {"id": "resp_a"}, False])
def test_a_response_before_that_is_no_string_is_refused(given: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        previous_of({"previous_response_id": given})
    assert refused.value.param == "previous_response_id"
