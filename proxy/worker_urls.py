"""Lists of workers on a command line: URLs, and names that DNS has several addresses of."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from protocol.errors import ConfigError
from protocol.flag_lists import NO_URLS, parse_urls
from protocol.options import option

_SCHEME = "dns+http://"


def worker_urls(help: str, **rule: Any) -> Any:
    """An option that is such a list."""
    return option("", help, "URLs", check=_check, **rule)


def _check(text: str) -> None:
    split_urls("", text)


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
