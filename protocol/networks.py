"""Networks as a flag lists them."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network, ip_network

from protocol.errors import ConfigError

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
