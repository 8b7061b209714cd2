"""Where a process gets its tracer, if it is to have one."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from protocol.errors import ConfigError
from protocol.server_options import TraceOptions

if TYPE_CHECKING:
    from services.http.tracing import Tracer


def make_tracer(
    options: TraceOptions, service: str, worker: str = "", share: float | None = None
) -> Tracer | None:
    """None without --trace-to: nothing of OpenTelemetry is imported then. `share` of the requests
    without a trace is traced, that of the options by default. `ConfigError` if the library is not
    installed, or the file cannot be written."""
    if not options.trace_to:
        return None
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
        raise ConfigError("--trace-to: pip install 'triptych[tracing]'")
    from services.http.tracing import Tracer

    share = options.trace_sample if share is None else share
    return Tracer(service, options.trace_to, share, worker)
