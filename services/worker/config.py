"""What a worker is told: flags named as vLLM's, environment, file."""

from __future__ import annotations

from dataclasses import dataclass

from connectors.config import parse_ec, parse_kv
from protocol.flag_lists import urls
from protocol.fleet_key import FleetOptions
from protocol.options import (
    drain_delay_option,
    grpc_port_option,
    log_format_option,
    log_level_option,
    option,
    port_option,
    seconds,
    shutdown_timeout_option,
    size,
    vllm_metrics_option,
)
from protocol.server_options import ClientKeyOptions, CorsOptions, TlsOptions, TraceOptions
from services.frontend.options import FrontendOptions
from services.membership.config import parse_events
from services.worker.engine_options import EngineOptions


def _check_ec(text: str) -> None:
    if text:
        parse_ec(text)


def _check_kv(text: str) -> None:
    if text:
        parse_kv(text)


def _check_events(text: str) -> None:
    parse_events(text, "", default=False)


@dataclass(frozen=True)
class WorkerConfig(
    EngineOptions,
    FrontendOptions,
    FleetOptions,
    ClientKeyOptions,
    CorsOptions,
    TlsOptions,
    TraceOptions,
):
    """Resolved once at start."""

    revision: str = option(
        "",
        "Name of the weights in content keys. Empty: derived from the model's files.",
        "name",
        section="Model",
    )
    host: str = option(
        "127.0.0.1",
        "Address to listen on; 0.0.0.0 or :: for all of this machine.",
        "address",
        section="Server",
    )
    port: int = port_option(8000, "TCP port to listen on. 0: any free port.")
    rtp_grpc_port: int = grpc_port_option("RTP-LLM's model service (GenerateStreamCall)")
    max_body_bytes: int = size(256 << 20, "Largest body of a request.")
    max_received_bytes: int = size(
        512 << 20,
        "Bytes of all request bodies that are being received and rendered; a body that does not fit"
        " is answered with 503 and Retry-After. gRPC answers RESOURCE_EXHAUSTED; one gRPC message"
        " may have 1/32 of this.",
    )
    enable_request_id_headers: bool = option(
        True, "Return the X-Request-Id header of a request with its answer."
    )
    ec_transfer_config: str = option(
        "",
        "Connector of embeddings: local, shm, shared_storage, nixl, ucx, or vLLM's JSON object."
        " Empty: the role's default.",
        "connector",
        check=_check_ec,
        section="Connectors",
    )
    kv_transfer_config: str = option(
        "",
        "Connector of KV blocks: local, shm, shared_storage, nixl, ucx, or vLLM's JSON object."
        " Empty: the role's default.",
        "connector",
        check=_check_kv,
    )
    master_url: str = urls(
        "Comma-separated URLs of the masters that the worker registers with.", section="Fleet"
    )
    advertise_url: str = urls(
        "URL by which masters and other workers reach this worker. Empty: derived from --host and"
        " --port.",
        unit="URL",
    )
    heartbeat_interval: float = seconds(
        1.0,
        "Time between load reports to a master; a master's lease shortens it to a third of the"
        " lease.",
        minimum=0.01,
    )
    kv_events_config: str = option(
        "",
        "Cache events, as vLLM's JSON object. Empty: published on free ports if --master-url is"
        " given.",
        "JSON",
        check=_check_events,
    )
    engine_stall_timeout: float = seconds(
        3.0,
        "Silence of the engine's process beyond which the worker takes no requests and gives up"
        " those it has, until the engine goes on. A step may take longer: the process says so while"
        " it computes.",
        minimum=0.5,
        section="Health of the engine",
    )
    engine_step_timeout: float = seconds(
        0.0,
        "How long one step of the engine may take before it counts as stalled. 0: 10 s, or twice"
        " the longest step so far; for a step that does more than any before, or work of another"
        " kind, which kernels may have to be compiled for, 120 s or four times.",
        minimum=0,
    )
    profile_folder: str = option(
        "",
        "Folder for traces of the engine's steps, which /start_profile and /stop_profile take with"
        " PyTorch's profiler. Empty: these routes are not there.",
        "path",
    )
    start_timeout: float = seconds(600.0, "How long the engine may take to load the model.")
    drain_delay: float = drain_delay_option(section="Server")
    shutdown_timeout: float = shutdown_timeout_option()
    log_level: str = log_level_option()
    log_format: str = log_format_option()
    vllm_metrics: bool = vllm_metrics_option()
