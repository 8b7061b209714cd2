"""What the proxy is told: all its flags, in one dataclass with those of its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from protocol.errors import ConfigError
from protocol.fleet_key import FleetOptions
from protocol.options import (
    count,
    drain_delay_option,
    grpc_port_option,
    log_format_option,
    log_level_option,
    option,
    port_option,
    shutdown_timeout_option,
    size,
    vllm_metrics_option,
)
from protocol.server_options import ClientKeyOptions, CorsOptions, TlsOptions, TraceOptions
from proxy.flag_scopes import NOTES
from proxy.limit_options import LimitOptions
from proxy.model_options import ModelOptions
from proxy.worker_options import WorkerOptions


@dataclass(frozen=True)
class ProxyConfig(
    WorkerOptions,
    LimitOptions,
    ModelOptions,
    FleetOptions,
    ClientKeyOptions,
    CorsOptions,
    TlsOptions,
    TraceOptions,
):
    """Resolved once at start. The help shows its own flags first, then those of each base."""

    notes: ClassVar[Mapping[str, str]] = NOTES
    host: str = option(
        "127.0.0.1",
        "Address to listen on; 0.0.0.0 or :: for all of this machine.",
        "address",
        section="Server",
    )
    port: int = port_option(8000, "TCP port to listen on. 0: any free port.", env="PROXY_PORT")
    fd: int = count(
        0,
        "Number of an open TCP socket that the process inherits and listens on, in place of --port;"
        " a launcher that keeps it open can start the next proxy before this one ends. 0: none.",
        "descriptor",
        minimum=0,
        maximum=1 << 20,
    )
    workers: int = count(
        1,
        "Processes that accept on the proxy's port, one for each core it may use. Each has its own"
        " limits, queue and view of the workers. With 2 or more: no stored responses of"
        " /v1/responses, no POST /instances, no gRPC.",
        "processes",
        maximum=256,
    )
    kserve_grpc_port: int = grpc_port_option("KServe's inference protocol")
    rtp_grpc_port: int = grpc_port_option("RTP-LLM's model service (GenerateStreamCall)")
    max_body_bytes: int = size(128 << 20, "Largest body of a request.", section="Server")
    max_received_bytes: int = size(
        512 << 20,
        "Bytes of all request bodies that are being received and rendered; a body that does not fit"
        " is answered with 503 and Retry-After. gRPC answers RESOURCE_EXHAUSTED; one gRPC message"
        " may have 1/32 of this.",
    )
    page: bool = option(
        True,
        "Serve a page at / on which one can ask the model and see where the time goes, and"
        " operators, with the admin key, the workers and the last requests.",
    )
    drain_delay: float = drain_delay_option(section="Server")
    shutdown_timeout: float = shutdown_timeout_option()
    log_requests: bool = option(
        False,
        "Write a line for each request, at level info: stages, tokens, workers, outcome. Relayed"
        " requests have Server-Timing and metrics by model then. It adds some 9 microseconds of"
        " processor time to each.",
    )
    log_level: str = log_level_option()
    log_format: str = log_format_option()
    vllm_metrics: bool = vllm_metrics_option()

    def with_dialect(self) -> ProxyConfig:
        """With the dialect of a proxy of several models, which is known."""
        if self.dialect == "auto" and len(self.models) > 1:
            return replace(self, dialect="tokens")
        return self

    def check_workers(self) -> None:
        """`ConfigError` if several processes cannot serve what other flags ask for."""
        if self.workers > 1 and max(self.kserve_grpc_port, self.rtp_grpc_port) >= 0:
            flag = "--kserve-grpc-port" if self.kserve_grpc_port >= 0 else "--rtp-grpc-port"
            raise ConfigError(f"{flag}: only one process can listen there: leave --workers at 1")

    def check_timeouts(self) -> None:
        """`ConfigError` if a clip may take longer to read than the call has that it is read in."""
        reads = self.dialect != "openai" and self.allow_clips
        if reads and self.video_timeout >= self.encode_timeout:
            raise ConfigError(
                f"--video-timeout: {self.video_timeout:g} s is not below --encode-timeout,"
                f" {self.encode_timeout:g} s, within which an encode worker reads a clip: lower it,"
                " or give --no-allow-clips"
            )
