"""Figures of the requests that have succeeded, by model: taken from the record that each leaves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from prometheus_client import CollectorRegistry

from protocol.histogram import GAPS, SECONDS, TOKENS, Histogram
from protocol.request_record import RequestRecord
from services.http.metrics import LightHistogram

_WHICH = "Of requests that succeeded; relayed ones are counted with --log-requests."
_MOST = 64  # names, which clients choose
_LONGEST = 128  # characters of a name
OTHER = "other"


class ModelFigures:
    """Histograms with a label `model`: the name that clients gave, or "other" beyond 64 names."""

    def __init__(self, prefix: str, registry: CollectorRegistry) -> None:
        def histogram(
            name: str, text: str, bounds: tuple[float, ...], *labels: str
        ) -> LightHistogram:
            said = f"{text} {_WHICH}"
            return LightHistogram(prefix + name, said, bounds, registry, ("model", *labels))

        self.ttft = histogram(
            "model_time_to_first_token_seconds",
            "Seconds from the arrival of a streamed request to its first output.",
            SECONDS,
        )
        self.tpot = histogram(
            "model_time_per_output_token_seconds",
            "Mean seconds between the tokens of a streamed request.",
            GAPS,
        )
        self.e2e = histogram(
            "model_request_latency_seconds",
            "Seconds from the arrival of a request to its end.",
            SECONDS,
        )
        self.stage = histogram(
            "model_stage_seconds",
            "Seconds that a request had work of a stage in progress: render, queue and place in"
            " the proxy, encode, prefill and decode at workers. Stages may overlap; decode begins"
            " with the transfer of KV.",
            SECONDS,
            "stage",
        )
        self.prompt = histogram("model_prompt_tokens", "Tokens of a prompt.", TOKENS)
        self.completion = histogram("model_completion_tokens", "Tokens of an answer.", TOKENS)
        self._of: dict[str, _OfModel] = {}

    def note(self, records: Sequence[RequestRecord]) -> None:
        """Count requests that have ended: many at once take half of the time."""
        by_model: dict[str, list[RequestRecord]] = {}
        for record in records:
            if not record.outcome and 0 < record.status < 400:
                by_model.setdefault(record.model[:_LONGEST], []).append(record)
        for model, some in by_model.items():
            self._named(model).note(some)

    def _named(self, model: str) -> _OfModel:
        found = self._of.get(model)
        if found is None:
            name = model if len(self._of) < _MOST else OTHER
            # Not kept by its own name: clients make names up, and the table must stay small.
            found = self._of.get(name) or self._of.setdefault(name, _OfModel(self, name))
        return found


class _OfModel:
    """The series of one model."""

    __slots__ = ("_completion", "_e2e", "_figures", "_name", "_prompt", "_stages", "_tpot", "_ttft")

    def __init__(self, figures: ModelFigures, name: str) -> None:
        # Series are looked up once: by labels, that takes longer than to count.
        self._figures, self._name = figures, name
        self._ttft, self._tpot = figures.ttft.of(name), figures.tpot.of(name)
        self._e2e = figures.e2e.of(name)
        self._prompt, self._completion = figures.prompt.of(name), figures.completion.of(name)
        self._stages: dict[str, Histogram] = {}

    def note(self, records: Sequence[RequestRecord]) -> None:
        self._e2e.observe_all([one.ended_at - one.start for one in records])
        # -1 where no worker has told the count.
        self._prompt.observe_all([n for one in records if (n := one.prompt_tokens) >= 0])
        self._completion.observe_all([n for one in records if (n := one.completion_tokens) >= 0])
        self._note_streams([one for one in records if one.first_at and one.streamed])
        stages: defaultdict[str, list[float]] = defaultdict(list)
        for one in records:
            one.add_stage_seconds(stages, one.ended_at)
        for stage, some in stages.items():
            self._stage(stage).observe_all(some)

    def _note_streams(self, records: Sequence[RequestRecord]) -> None:
        self._ttft.observe_all([one.first_at - one.start for one in records])
        several = [one for one in records if one.completion_tokens > 1]
        self._tpot.observe_all(
            [(one.ended_at - one.first_at) / (one.completion_tokens - 1) for one in several]
        )

    def _stage(self, name: str) -> Histogram:
        found = self._stages.get(name)
        if found is None:
            found = self._stages[name] = self._figures.stage.of(self._name, name)
        return found
