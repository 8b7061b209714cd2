"""The proxy's flags for its workers: where they are, and how they are spoken to.

A list of workers has URLs, and names that DNS has several addresses of.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from protocol.errors import ConfigError
from protocol.flag_lists import NO_URLS, parse_urls, urls
from protocol.options import count, option, seconds

_SCHEME = "dns+http://"


def _worker_urls(help: str, **rule: Any) -> Any:
    """An option that is such a list."""
    return option("", help, "URLs", check=_check, **rule)


def _check(text: str) -> None:
    split_urls("", text)


def _check_header(key: str) -> None:
    if not (key.isascii() and key.isprintable()):
        raise ConfigError("only printable ASCII characters fit into a header")


@dataclass(frozen=True)
class WorkerOptions:
    """Where workers are, or the masters that name them; keys; the protocol that workers speak."""

    encode_servers_urls: str = _worker_urls(
        "Comma-separated URLs of encode workers; dns+http://NAME:PORT stands for all addresses of"
        " NAME. none, disable or empty: there are none.",
        section="Fleet",
    )
    prefill_servers_urls: str = _worker_urls(
        "Comma-separated URLs of prefill workers. none, disable or empty: decode workers prefill."
    )
    decode_servers_urls: str = _worker_urls(
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

    @property
    def authorization(self) -> str:
        """What workers are sent if a client sent nothing. `ConfigError` if it is no header."""
        key = self.worker_api_key
        _check_header(key)
        return f"Bearer {key}" if key else ""

    def urls_of_masters(self) -> list[str]:
        """`ConfigError` if one is not a URL."""
        return parse_urls("--master-url", self.master_url)


def split_urls(flag: str, text: str) -> tuple[list[str], list[tuple[str, int]]]:
    """(URLs of workers, names with ports to look up) of a comma-separated list; `ConfigError`."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    names = [word for word in words if word.startswith("dns+")]
    listed = ",".join(word for word in words if word not in names)
    urls = [] if listed.lower() in NO_URLS else parse_urls(flag, listed)
    return urls, [_name(flag, word) for word in names]


def _name(flag: str, word: str) -> tuple[str, int]:
    try:
        parts = urlsplit(word.rstrip("/"))
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    # Certificates are for names, and a worker is spoken to by its address.
    if not word.startswith(_SCHEME) or not host or not port or parts.path:
        raise ConfigError(f"{flag}: '{word}' is not {_SCHEME}NAME:PORT")
    return host, port
