"""A mock worker's histograms read as a real worker's."""

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from protocol.histogram import SECONDS, Histogram
from services.engine.messages import Statistics
from services.mock.metrics import histogram_lines
from services.worker.metrics import WorkerMetrics

NAME = "triptych:request_queue_time_seconds"


def of(text: str) -> list[Sample]:
    families = text_string_to_metric_families(text)
    return [sample for family in families if family.name == NAME for sample in family.samples]


def test_they_are_shown_as_a_real_workers() -> None:
    series = Histogram.of(SECONDS)
    for value in (0.001, 0.3, 0.31, 500.0):
        series.observe(value)
    histograms = {NAME.removeprefix("triptych:"): series}
    mock = "".join(histogram_lines('model="m",role="prefill"', histograms))
    snapshot = Statistics(1, {}, {}, histograms=histograms)
    real = WorkerMetrics("prefill", "m").render(snapshot).decode()
    assert of(mock) == of(real)
    assert len(of(mock)) == len(SECONDS) + 3
