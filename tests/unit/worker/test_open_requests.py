"""Requests that wait for outputs of an engine."""

import pytest

from protocol.errors import InternalError, RequestAborted, TriptychError, Unavailable, error_info
from protocol.request_record import RequestRecord
from protocol.types import (
    EncodeItem,
    EncodeOutput,
    EncodeRequest,
    GenerateRequest,
    RequestOutput,
    SamplingParams,
)
from services.worker.open_requests import OpenRequests

BROKEN = error_info(InternalError("broken"))


def generating(n: int = 1) -> GenerateRequest:
    return GenerateRequest("r", [1], SamplingParams(n=n))


def encoding(*names: str) -> EncodeRequest:
    return EncodeRequest("e", [EncodeItem(name, "image", 1) for name in names])


async def test_what_has_come_meanwhile_is_taken_together() -> None:
    requests = OpenRequests()
    with requests.generating(generating(n=2), RequestRecord()) as here:
        requests.hand([RequestOutput("r", 0, [1]), RequestOutput("other", 0, [9])], [])
        requests.hand([RequestOutput("r", 1, [2], finish_reason="stop")], [])
        assert [(o.index, o.token_ids) for o in await here.take()] == [(0, [1]), (1, [2])]
        assert here.left == {0}


async def test_an_aborted_request_ends_in_each_choice_that_is_left() -> None:
    requests = OpenRequests()
    with requests.generating(generating(n=2), RequestRecord()) as here:
        requests.hand([RequestOutput("r", 0, [1], finish_reason="stop")], [])
        await here.take()
        requests.abort("r")
        assert [(o.index, o.finish_reason) for o in await here.take()] == [(1, "abort")]
        assert not here.left


async def test_outputs_of_requests_that_wait_no_longer_are_dropped() -> None:
    requests = OpenRequests()
    with requests.generating(generating(), RequestRecord()):
        pass
    requests.hand([RequestOutput("r", 0, [1])], [EncodeOutput("e", "a")])
    requests.abort("r")
    with requests.generating(generating(), RequestRecord()) as here:
        assert here.queue.empty()


async def test_embeddings_are_waited_for_until_all_are_there() -> None:
    requests = OpenRequests()
    with requests.encoding(encoding("a", "b", "a"), RequestRecord()) as here:
        requests.hand([], [EncodeOutput("e", "b"), EncodeOutput("e", "a", error=BROKEN)])
        await here.finish()
        assert list(here.outputs) == ["b", "a"], "one item's error is no other one's"


async def test_an_engine_that_ends_fails_them_all() -> None:
    requests = OpenRequests()
    with (
        requests.generating(generating(), RequestRecord()) as one,
        requests.encoding(encoding("a"), RequestRecord()) as other,
    ):
        requests.fail(BROKEN)
        with pytest.raises(TriptychError, match="broken"):
            await one.take()
        with pytest.raises(TriptychError, match="broken"):
            await other.finish()


async def test_an_aborted_encode_request_is_told() -> None:
    requests = OpenRequests()
    with requests.encoding(encoding("a"), RequestRecord()) as here:
        requests.abort("e")
        with pytest.raises(RequestAborted):
            await here.finish()


async def test_a_second_request_with_the_same_id_is_refused_and_the_first_goes_on() -> None:
    requests = OpenRequests()
    with (
        requests.generating(generating(), RequestRecord()) as one,
        requests.encoding(encoding("a"), RequestRecord()) as other,
    ):
        with (
            pytest.raises(Unavailable, match="'r' is in use"),
            requests.generating(generating(), RequestRecord()),
        ):
            pass
        with (
            pytest.raises(Unavailable, match="'e' is in use"),
            requests.encoding(encoding("b"), RequestRecord()),
        ):
            pass
        requests.hand([RequestOutput("r", 0, [1], finish_reason="stop")], [EncodeOutput("e", "a")])
        assert [output.token_ids for output in await one.take()] == [[1]]
        await other.finish()
    with (
        requests.generating(generating(), RequestRecord()),
        requests.encoding(encoding("a"), RequestRecord()),
    ):
        pass
