"""What the proxy is told: the seed's flags for static fleets, limits and times."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.errors import ConfigError
from protocol.settings import option, parse_urls
from services.frontend.options import FrontendOptions


@dataclass(frozen=True)
class ProxyConfig(FrontendOptions):
    """Resolved once at start; times are seconds. URL lists are comma-separated."""

    host: str = option("127.0.0.1", "address to listen on")
    port: int = option(8000, "port to listen on, 0 for any free one", env="PROXY_PORT")
    encode_servers_urls: str = option("", "encode workers; disable, none or empty for none")
    prefill_servers_urls: str = option("", "prefill workers; disable, none or empty for none")
    decode_servers_urls: str = option("", "decode workers, or workers that do it all")
    master_url: str = option("", "masters that place requests, comma-separated")
    admin_api_key: str = option("", "X-API-Key of /instances; closed if empty", env="ADMIN_API_KEY")
    worker_api_key: str = option(
        "", "the workers' --api-key, for what is asked without a client's", env="WORKER_API_KEY"
    )
    dialect: str = option("auto", "how workers are spoken to", choices=("auto", "tokens", "openai"))
    allow_media_references: bool = option(False, "let clients name media by uuid alone")
    send_media: bool = option(
        False, "media go to all stages, not to encoders only (openai dialect)"
    )
    max_body_bytes: int = option(128 << 20, "largest request body")
    max_in_flight: int = option(4096, "requests at once before the proxy answers 503")
    max_per_worker: int = option(0, "requests under way per decode worker, 0: twice its batch")
    max_queue: int = option(1024, "requests that wait until fewer are under way")
    max_queue_wait: float = option(5.0, "foreseen wait there at which a request is refused at once")
    queue_timeout: float = option(60.0, "longest wait there")
    request_timeout: float = option(600.0, "a whole request")
    encode_timeout: float = option(60.0, "one encode call")
    prefill_timeout: float = option(120.0, "one prefill call")
    first_token_timeout: float = option(120.0, "to a stream's first event")
    decode_timeout: float = option(300.0, "one answer that is not streamed")
    stall_timeout: float = option(60.0, "between events of a stream")
    connect_timeout: float = option(2.0, "connecting to a worker")
    max_retries: int = option(3, "further tries, in a row without progress")
    failover_wait: float = option(30.0, "for a worker to be up, of a request that has begun")
    retry_backoff: float = option(0.05, "before the first further try, then doubled")
    breaker_failures: int = option(5, "failures in a row before a worker is left alone")
    breaker_cooldown: float = option(10.0, "for how long it is left alone")
    encode_at_once: int = option(32, "encode calls at one encoder of another engine at once")
    max_answer_bytes: int = option(64 << 20, "largest answer of a worker, not streamed")
    probe_interval: float = option(1.0, "between health probes of a worker")
    log_level: str = option("info", "debug, info, warning or error")

    @property
    def authorization(self) -> str:
        """What workers are sent if a client sent nothing. `ConfigError` if it is no header."""
        key = self.worker_api_key
        if not (key.isascii() and key.isprintable()):
            raise ConfigError("--worker-api-key must be printable ASCII characters")
        return f"Bearer {key}" if key else ""

    def urls_of_masters(self) -> list[str]:
        """`ConfigError` if one is not a URL."""
        return parse_urls("--master-url", self.master_url)
