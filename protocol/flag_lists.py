"""Lists as flags have them: comma-separated URLs and networks."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any

from protocol.errors import ConfigError
from protocol.options import option

Network = IPv4Network | IPv6Network
ANY_NETWORK = "any"


def parse_networks(text: str) -> tuple[Network, ...]:
    """Comma-separated networks; `ConfigError` names the one that is none."""
    found: list[Network] = []
    for word in filter(None, map(str.strip, text.split(","))):
        try:
            found.append(ip_network(word))
        except ValueError as error:
            raise ConfigError(f"'{word}' is no network such as 10.0.0.0/8: {error}") from None
    return tuple(found)


def check_networks(text: str) -> None:
    if text.strip().lower() != ANY_NETWORK:
        parse_networks(text)


NO_URLS = ("", "none", "disable", "disabled")


def parse_urls(flag: str, text: str) -> list[str]:
    """Comma-separated http(s) URLs without trailing slashes, each once; `ConfigError` otherwise."""
    urls = [url.strip().rstrip("/") for url in text.split(",") if url.strip()]
    for url in urls:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"{flag}: '{url}' is not an http(s) URL")
    # A worker that is named twice would get twice its share.
    return list(dict.fromkeys(urls))


def urls(help: str, default: str = "", unit: str = "URLs", **rule: Any) -> Any:
    """An option that is a comma-separated list of http(s) URLs; none or disable for no URL."""
    return option(default, help, unit, check=_check_urls, **rule)


def _check_urls(text: str) -> None:
    if text.strip().lower() not in NO_URLS:
        parse_urls("", text)
