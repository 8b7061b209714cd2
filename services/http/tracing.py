"""Requests as OpenTelemetry's spans, in the names of its HTTP and generative AI conventions.

Imported only where --trace-to is given. A request that is traced has one span for itself and one
for each of its stages, made after its end of what its record says. Those of several requests are
made together: between other work each would take about four times as long. A thread of the library
sends them, in batches.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Link, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from protocol.errors import ConfigError

if TYPE_CHECKING:
    from protocol.request_record import Call, RequestRecord

_TRACES_PATH = "/v1/traces"
_SERVED = ("ok", "aborted")
# Which stage another one gets tensors from: embeddings, and KV.
_TAKES_FROM: Mapping[str, str] = MappingProxyType({"prefill": "encode", "decode": "prefill"})


_FLUSH_S = 0.5  # for which a request's spans wait
_MOST = 16  # requests whose spans wait: to make them holds the event loop up for some 4 ms


@dataclass(frozen=True)
class _Begun:
    """The span of a request under way, which is made once that has ended."""

    trace_id: int
    span_id: int
    parent: Context | None  # the client's, None for a trace that begins here


class _GivenIds(RandomIdGenerator):
    """`given`: the ids of the next span, which calls for the request have brought already."""

    given: _Begun | None = None

    def generate_trace_id(self) -> int:
        return super().generate_trace_id() if self.given is None else self.given.trace_id

    def generate_span_id(self) -> int:
        if (given := self.given) is None:
            return super().generate_span_id()
        self.given = None
        return given.span_id


class Tracer:
    """Of one process. Spans are made on its event loop; `close` makes and sends those that wait."""

    def __init__(self, service: str, to: str, share: float, worker: str = "") -> None:
        """`service`: what the process calls itself; `worker`: its address, "" for none. `share` of
        the requests that bring no trace are traced. `ConfigError` if the file cannot be written."""
        named = {"service.name": f"triptych-{service}", "service.instance.id": worker}
        resource = Resource.create({name: value for name, value in named.items() if value})
        self._ids = _GivenIds()
        self._provider = TracerProvider(
            resource=resource, shutdown_on_exit=False, id_generator=self._ids
        )
        self._provider.add_span_processor(BatchSpanProcessor(_exporter(to)))
        self._tracer = self._provider.get_tracer("triptych")
        self._service, self._share = service, share
        self._propagator = TraceContextTextMapPropagator()
        self._random = random.Random()
        self._ended: list[tuple[_Begun, RequestRecord]] = []
        # Records have monotonic times, spans the time of day.
        self._offset_s = time.time() - time.monotonic()

    def begin(self, record: RequestRecord) -> None:
        """Decide whether a request is traced, by its client's `traceparent` or by chance. One that
        is has this process's span in its `trace_headers`; others keep what they have."""
        headers = record.trace_headers
        if not headers and not self._drawn():
            return  # nearly all: looking for a trace takes longer than all the rest here
        parent, trace_id = None, 0
        if headers:
            parent = self._propagator.extract(headers)
            given = trace.get_current_span(parent).get_span_context()
            # The client's own decision, if its header is one; else it is as if there were none.
            if not (given.trace_flags.sampled if given.is_valid else self._drawn()):
                return
            trace_id = given.trace_id
        begun = _Begun(
            trace_id or self._ids.generate_trace_id(), self._ids.generate_span_id(), parent
        )
        record.kept, record.trace = True, begun
        own = f"00-{begun.trace_id:032x}-{begun.span_id:016x}-01"
        record.trace_headers = {**headers, "traceparent": own}

    def end(self, record: RequestRecord) -> None:
        """The request has ended; its spans are made soon, if it is traced."""
        begun, record.trace = record.trace, None
        if begun is None:
            return
        record.ended_at = record.ended_at or time.monotonic()
        self._ended.append((begun, record))
        if len(self._ended) == 1:
            asyncio.get_running_loop().call_later(_FLUSH_S, self._flush)
        elif len(self._ended) >= _MOST:
            self._flush()

    def _flush(self) -> None:
        ended, self._ended = self._ended, []
        for begun, record in ended:
            self._make(begun, record)

    def _make(self, begun: _Begun, record: RequestRecord) -> None:
        """The spans of a request and of its calls."""
        self._ids.given = begun
        span = self._tracer.start_span(
            f"{self._service} {record.path}", begun.parent, SpanKind.SERVER,
            start_time=self._ns(record.start),
        )  # fmt: skip
        inside = trace.set_span_in_context(span)
        made: dict[str, list[Link]] = {}
        for call in sorted(record.calls, key=_maker_first):
            took = made.get(_TAKES_FROM.get(call.stage, ""), ())
            own = self._part(call, inside, min(call.end or record.ended_at, record.ended_at), took)
            made.setdefault(call.stage, []).append(Link(own))
        span.set_attributes(_attributes(record))
        if record.first_at:
            span.add_event("first output", timestamp=self._ns(record.first_at))
        outcome = record.result()
        if outcome not in _SERVED:
            span.set_status(StatusCode.ERROR, outcome)
        span.end(self._ns(record.ended_at))

    def _part(
        self, call: Call, inside: Context, end: float, took: Sequence[Link]
    ) -> trace.SpanContext:
        """The span of one call; `took`: spans that made the tensors it was sent."""
        kind = SpanKind.CLIENT if call.worker else SpanKind.INTERNAL
        said = {"server.address": call.worker} if call.worker else {}
        start_ns = self._ns(call.start)
        part = self._tracer.start_span(call.stage, inside, kind, said, took, start_ns)
        part.end(self._ns(end))
        return part.get_span_context()

    def close(self) -> None:
        self._flush()
        self._provider.shutdown()

    def _drawn(self) -> bool:
        return self._random.random() < self._share

    def _ns(self, at: float) -> int:
        return int((at + self._offset_s) * 1e9)


def _maker_first(call: Call) -> int:
    """Stages begin beside each other: in the order in which they get tensors."""
    return list(_TAKES_FROM).index(call.stage) + 1 if call.stage in _TAKES_FROM else 0


def _attributes(record: RequestRecord) -> dict[str, str | int]:
    """What is known of a request, under the names that other servers use too."""
    found: dict[str, str | int] = {
        "http.response.status_code": record.status,
        "triptych.request_id": record.request_id,
        "triptych.outcome": record.result(),
        "triptych.retries": record.retries,
        "triptych.media": record.media,
    }
    counts = {
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.output_tokens": record.completion_tokens,
        "triptych.cached_tokens": record.cached_tokens,
    }
    # Below 0 are counts that have not come to be known.
    found |= {name: count for name, count in counts.items() if count >= 0}
    return found | ({"gen_ai.request.model": record.model} if record.model else {})


def _exporter(to: str) -> SpanExporter:
    if not to.startswith(("http://", "https://")):
        return FileExporter(Path(to))
    url = to.rstrip("/")
    return OTLPSpanExporter(url if url.endswith(_TRACES_PATH) else url + _TRACES_PATH)


class FileExporter(SpanExporter):
    """Appends a line of JSON for each span; several processes may share a file."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise ConfigError(
                f"--trace-to: {path} cannot be written to: {error.strerror}"
            ) from None

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        lines = [span.to_json(indent=None) + "\n" for span in spans]
        # One write in append mode: lines of several processes do not mix.
        self._file.write("".join(lines).encode())
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        self._file.close()
