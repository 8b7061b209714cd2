"""What the proxy is told: the seed's flags for static fleets, limits and times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from protocol.errors import ConfigError
from protocol.flag_lists import parse_urls, urls
from protocol.fleet_key import FleetOptions
from protocol.options import (
    count,
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
from proxy.flag_scopes import NOTES
from proxy.model_options import ModelOptions
from proxy.worker_urls import worker_urls


def _check_header(key: str) -> None:
    if not (key.isascii() and key.isprintable()):
        raise ConfigError("only printable ASCII characters fit into a header")


@dataclass(frozen=True)
class ProxyConfig(
    ModelOptions, FleetOptions, ClientKeyOptions, CorsOptions, TlsOptions, TraceOptions
):
    """Resolved once at start."""

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
    encode_servers_urls: str = worker_urls(
        "Comma-separated URLs of encode workers; dns+http://NAME:PORT stands for all addresses of"
        " NAME. none, disable or empty: there are none.",
        section="Fleet",
    )
    prefill_servers_urls: str = worker_urls(
        "Comma-separated URLs of prefill workers. none, disable or empty: decode workers prefill."
    )
    decode_servers_urls: str = worker_urls(
        "Comma-separated URLs of decode workers, or of workers that serve all stages."
    )
    ec_consumer_zmq_addrs: str = option(
        "",
        "Comma-separated ZMQ addresses, tcp://HOST:PORT, on which vLLM's decode workers with"
        " ECMooncakeConnector receive the embeddings that encoders push; in the order of"
        " --decode-servers-urls, the data-parallel ranks of a worker one after the other. Empty:"
        " workers fetch embeddings themselves.",
        "addresses",
    )
    ec_consumer_dp_size: int = count(
        1,
        "Data-parallel ranks of each decode worker in --ec-consumer-zmq-addrs.",
        "ranks",
        maximum=4096,
    )
    dns_interval: float = seconds(
        5.0, "Time between two lookups of the names that dns+http:// URLs have.", minimum=0.1
    )
    master_url: str = urls(
        "Comma-separated URLs of the masters that place requests; the next one is asked when one"
        " fails. Empty: the proxy places requests itself."
    )
    admin_api_key: str = option(
        "",
        "Key that X-API-Key must bring to /instances, /set_log_level and the operators' routes of"
        " workers. Empty: these are closed.",
        "key",
        env="ADMIN_API_KEY",
        secret=True,
        section="Access",
    )
    worker_api_key: str = option(
        "",
        "Key for workers that ask for one, used for the proxy's own calls and for clients that"
        " send no Authorization header.",
        "key",
        env="WORKER_API_KEY",
        check=_check_header,
        secret=True,
    )
    dialect: str = option(
        "auto",
        "Protocol of the workers: auto (probe each worker), tokens (Triptych workers), openai (vLLM"
        " and compatible workers).",
        choices=("auto", "tokens", "openai"),
        section="Protocol of the workers",
    )
    allow_media_references: bool = option(
        False, "Let a client name a picture of an earlier request by its uuid, without its bytes."
    )
    send_media: bool = option(
        False,
        "Send the bytes of media to prefill and decode workers too, not to encode workers alone.",
    )
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
    max_in_flight: int = count(
        4096,
        "Requests in the proxy beyond which a new one is answered with 503.",
        "requests",
        section="Queue",
    )
    max_per_worker: int = count(
        0,
        "Requests in progress per decode worker beyond which further ones wait in the queue. 0:"
        " twice the worker's own batch.",
        "requests",
        minimum=0,
    )
    max_queue: int = count(
        1024,
        "Requests that may wait in the proxy's queue; further ones are answered with 503. 0: none"
        " waits.",
        "requests",
        minimum=0,
    )
    max_queue_wait: float = seconds(
        30.0, "Predicted wait in the proxy's queue beyond which a request is answered with 503."
    )
    queue_timeout: float = seconds(
        60.0, "How long a request may wait in the proxy's queue before it is answered with 503."
    )
    tenant_share: float = option(
        1.0,
        "Share of what all workers run at once that one tenant, an API key, may have while another"
        " asks too. 1: all of it.",
        "share",
        above=0,
        maximum=1,
    )
    request_timeout: float = seconds(
        600.0, "How long a whole request may take.", section="Timeouts and retries"
    )
    encode_timeout: float = seconds(60.0, "How long one call of an encode worker may take.")
    prefill_timeout: float = seconds(120.0, "How long one call of a prefill worker may take.")
    first_token_timeout: float = seconds(
        120.0, "How long a worker may take to send the first event of a stream."
    )
    decode_timeout: float = seconds(
        300.0, "How long one call of a decode worker may take whose answer is not streamed."
    )
    stall_timeout: float = seconds(60.0, "Longest silence between two events of a stream.")
    connect_timeout: float = seconds(2.0, "How long connecting to a worker may take.")
    max_retries: int = count(
        3,
        "Attempts after the first one that a stage gets in a row without progress.",
        "attempts",
        minimum=0,
        maximum=1000,
        flags=("--decode-retries",),
    )
    failover_wait: float = seconds(
        30.0,
        "How long a request that has begun waits for a worker to be up, before it fails.",
        minimum=0,
    )
    retry_backoff: float = seconds(
        0.05, "Pause before the second attempt; each further pause is twice as long.", minimum=0
    )
    breaker_failures: int = count(
        5, "Failures in a row after which a worker gets no requests for a while.", "failures"
    )
    breaker_cooldown: float = seconds(
        10.0, "How long a worker gets no requests after --breaker-failures.", minimum=0
    )
    encode_at_once: int = count(
        32,
        "Calls that one encode worker gets at once.",
        "calls",
        maximum=65536,
    )
    max_answer_bytes: int = size(
        64 << 20, "Largest answer of a worker that is not streamed; a larger one fails the call."
    )
    probe_interval: float = seconds(
        1.0, "Time between two health probes of a worker.", minimum=0.01
    )
    drain_delay: float = drain_delay_option(section="Server")
    shutdown_timeout: float = shutdown_timeout_option()
    log_requests: bool = option(
        False,
        "Write a line for each request, at level info: stages, tokens, workers, outcome. Relayed"
        " requests have Server-Timing and metrics by model then. It adds a fifth to the"
        " processor time that relaying a short one takes.",
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

    @property
    def authorization(self) -> str:
        """What workers are sent if a client sent nothing. `ConfigError` if it is no header."""
        key = self.worker_api_key
        _check_header(key)
        return f"Bearer {key}" if key else ""

    def urls_of_masters(self) -> list[str]:
        """`ConfigError` if one is not a URL."""
        return parse_urls("--master-url", self.master_url)
