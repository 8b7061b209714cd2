"""Which worker each stage of a relayed request runs on.

Without a master a stage's worker is chosen when the stage begins. Embeddings that encoders push go
to one worker, and to one of its data-parallel ranks: where the fleet has such consumers, the one of
a request with media is chosen before the media are encoded, and kept until the attempt ends.
"""

from __future__ import annotations

from protocol.types import Role
from proxy.fleet.fleet import Fleet
from proxy.fleet.worker import Instance
from proxy.relay.consumer import Consumer
from proxy.relay.request_state import RelayedRequest


class StageWorkers:
    """Chooses for one attempt at a time."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def prefills_apart(self, request: RelayedRequest) -> bool:
        """Whether another worker than the one that decodes is still to prefill."""
        if request.prefill is not None or not self._fleet.prefill or request.body.scores_prompt:
            return False
        if request.plan is not None:
            return request.plan.prefill is not None
        return self._fleet.models.has_any(self._fleet.prefill, request.model)

    def of(self, request: RelayedRequest, stage: Role) -> Instance:
        """The worker for a stage: as a master has planned it, as the embeddings were sent, or the
        least loaded one. Raises `NoWorker`."""
        if request.plan is not None:
            planned = request.plan.prefill if stage == "prefill" else request.plan.decode
            if planned is not None:
                return planned
        if request.consumer is not None and request.consumer.stage == stage:
            return request.consumer.instance
        return self._fleet.choose(stage, request.avoid, request.model)

    async def consumer(self, request: RelayedRequest) -> Consumer:
        """The worker that is to have the request's embeddings, and its rank with the fewest
        requests; both are the request's until `leave`. Raises `NoWorker`."""
        stage: Role = "prefill" if self.prefills_apart(request) else "decode"
        return Consumer.bound(self.of(request, stage), stage)

    @staticmethod
    def leave(request: RelayedRequest) -> None:
        """The attempt has ended. Another one begins with the media themselves, as embeddings that
        were pushed are at one worker alone, unless that has prefilled the prompt already."""
        consumer, request.consumer = request.consumer, None
        if consumer is not None:
            consumer.leave()
            if request.prefill is None:
                request.media = None
