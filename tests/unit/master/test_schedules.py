"""Several requests that one call has placed."""

import pytest

from protocol.placement import Finished, Placement, Scheduled, ScheduleRequest, ScheduleRequests
from services.admission.ticket import Ticket
from services.master.api.batches import schedules
from services.master.api.service import MasterService
from services.master.config import MasterConfig
from tests.support.master_fleets import add, asking


@pytest.fixture
def service() -> MasterService:
    """Before one worker, which takes two requests at once."""
    made = MasterService(MasterConfig(seed=1, busy_requests=2))
    add(made.master, "w", "pdfusion", events=[])
    return made


def schedule(service: MasterService, *requests: ScheduleRequest) -> Scheduled:
    return schedules(service.master, service.metrics)(ScheduleRequests(list(requests)))


def outcomes(found: Scheduled) -> list[str]:
    """Of each, whether it is placed, wrong, or to ask for itself."""
    return [
        "placed" if one.placement else one.error.code if one.error else "alone"
        for one in found.results
    ]


def text(name: str, **fields: object) -> ScheduleRequest:
    return asking(name, blocks=0, **fields)


def test_those_for_which_there_is_room_are_placed(service: MasterService) -> None:
    found = schedule(service, text("a"), text("b", model="other"), text("c"), text("d"))
    assert outcomes(found) == ["placed", "model_not_found", "placed", "alone"]
    assert found.results[0].placement is not None
    assert found.results[0].placement.decode.instance_id == "w"
    assert service.master.waiting == 0, "it waits once it asks for itself"
    assert len(service.master.ledger) == 2
    assert service.master.totals.refused == {"model_not_found": 1}
    text_of_metrics = service.metrics.render().decode()
    assert 'triptych_master:errors_total{code="model_not_found"} 1.0' in text_of_metrics
    assert "triptych_master:schedule_seconds_count 4.0" in text_of_metrics


def test_none_is_placed_before_those_that_wait(service: MasterService) -> None:
    schedule(service, text("a"), text("b"))
    ticket = service.schedule(text("first"))
    assert isinstance(ticket, Ticket)
    service.master.finished(Finished("a"), 0.0)
    assert outcomes(schedule(service, text("late"))) == ["alone"]
    service.master.pump(0.1)
    assert isinstance(ticket.outcome, Placement)


def test_a_mistake_of_ours_fails_one_of_them(
    service: MasterService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place = service.master.place_at_once

    def fails(request: ScheduleRequest, now: float) -> Placement | None:
        if request.request_id == "a":
            raise ValueError("a mistake")
        return place(request, now)

    monkeypatch.setattr(service.master, "place_at_once", fails)
    assert outcomes(schedule(service, text("a"), text("b"))) == ["internal_error", "placed"]
    assert "request a could not be placed" in caplog.text
