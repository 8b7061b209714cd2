"""Several requests that one call has placed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from protocol.errors import InternalError, TriptychError, error_info
from protocol.placement import Scheduled, ScheduleRequest, ScheduleRequests, ScheduleResult
from services.master.api.metrics import MasterMetrics
from services.master.master import Master

logger = logging.getLogger(__name__)


def schedules(master: Master, metrics: MasterMetrics) -> Callable[[ScheduleRequests], Scheduled]:
    """What can be placed at once. A request that fails fails alone."""

    def result(request: ScheduleRequest) -> ScheduleResult:
        start = time.monotonic()
        try:
            found = ScheduleResult(master.place_at_once(request, start))
        except Exception as error:
            if not isinstance(error, TriptychError):
                logger.exception("request %s could not be placed", request.request_id)
                error = InternalError("the master failed to place the request")
            metrics.errors.labels(error.code).inc()
            found = ScheduleResult(None, error_info(error), error.retry_after_s)
        metrics.schedule.observe(time.monotonic() - start)
        return found

    return lambda body: Scheduled([result(request) for request in body.requests])
