"""Flags of every process that listens: keys of clients, browsers that may ask, certificates."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

import msgspec

from protocol.errors import ConfigError
from protocol.fleet_key import check_secret, read_secrets
from protocol.options import option


def _listed(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _check_keys(text: str) -> None:
    for key in _listed(text):
        check_secret(key, shortest=1)


@dataclass(frozen=True)
class ClientKeyOptions:
    """Which clients are served."""

    api_key: str = option(
        "",
        "Comma-separated API keys; a client brings one as Authorization: Bearer KEY. Empty: none is"
        " needed. May be given several times.",
        "keys",
        check=_check_keys,
        secret=True,
        between=",",
        section="API keys of clients",
    )
    api_key_file: str = option("", "File of further API keys, one in a line.", "path")
    protect_metrics: bool = option(
        False, "Ask for a key at /metrics too, and for what /health tells beyond its status."
    )

    @property
    def asks_for_api_keys(self) -> bool:
        return bool(self.api_key or self.api_key_file)

    def read_api_keys(self) -> list[str]:
        """Those of flag and file; `ConfigError` if one is no key."""
        keys = _listed(self.api_key)
        if self.api_key_file:
            keys += read_secrets("--api-key-file", self.api_key_file)
        try:
            _check_keys(",".join(keys))
        except ConfigError as error:
            raise ConfigError(f"--api-key-file: {error.message}") from None
        return keys


def parse_words(text: str) -> list[str]:
    """vLLM's JSON list of words, or the words with commas between them."""
    if not text.lstrip().startswith("["):
        return _listed(text)
    try:
        return msgspec.json.decode(text, type=list[str])
    except msgspec.DecodeError as error:
        raise ConfigError(f"a JSON list of words is expected: {error}") from None


def _check_collector(text: str) -> None:
    if text and "://" in text and not text.startswith(("http://", "https://")):
        raise ConfigError(f"{text!r} is neither an http(s) URL nor a file")


@dataclass(frozen=True)
class TraceOptions:
    """Whether and where requests are traced."""

    trace_to: str = option(
        "",
        "Collector that spans are sent to over OTLP/HTTP (http://collector:4318), or a file that"
        " they are appended to as lines of JSON. Needs the extra tracing. Empty: no tracing.",
        "URL or path",
        check=_check_collector,
        section="Tracing",
    )
    trace_sample: float = option(
        0.01,
        "Share of the requests without a traceparent header that are traced; one with the header"
        " is traced if that says so. Workers and masters trace what the proxy"
        " traces.",
        "share",
        minimum=0,
        maximum=1,
    )


@dataclass(frozen=True)
class CorsOptions:
    """Which web pages may use the server from a browser; vLLM's flags."""

    allowed_origins: str = option(
        "",
        "Origins of web pages that may ask from a browser, as a JSON list or with commas between"
        ' them; ["*"] for all. Empty: none.',
        "origins",
        check=parse_words,
        section="Browsers",
    )
    allowed_methods: str = option(
        '["*"]', "HTTP methods that such pages may use.", "methods", check=parse_words
    )
    allowed_headers: str = option(
        '["*"]', "Headers that such pages may send.", "headers", check=parse_words
    )
    allow_credentials: bool = option(False, "Let such pages send cookies and certificates.")


@dataclass(frozen=True)
class TlsOptions:
    """How the server is spoken to, and how it speaks to others; the first three are vLLM's."""

    ssl_keyfile: str = option("", "Private key of the server (PEM).", "path", section="TLS")
    ssl_certfile: str = option(
        "", "Certificate of the server (PEM). Empty: it speaks HTTP without TLS.", "path"
    )
    ssl_ca_certs: str = option(
        "",
        "Certificates of authorities (PEM) by one of which every client's certificate must be"
        " signed. Empty: clients need none.",
        "path",
    )
    ca_certs: str = option(
        "",
        "Certificates of authorities (PEM) by which https:// URLs of masters and workers are"
        " checked. Empty: the system's.",
        "path",
    )

    @property
    def serves_tls(self) -> bool:
        return bool(self.ssl_certfile)

    def check_tls(self) -> None:
        """`ConfigError` names the flag whose file is missing or is not what it should be."""
        if not self.ssl_certfile:
            for flag in ("ssl_keyfile", "ssl_ca_certs"):
                if getattr(self, flag):
                    raise ConfigError(f"--{flag.replace('_', '-')} needs --ssl-certfile")
            return
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._load_own(context)
        if self.ssl_ca_certs:
            _load_authorities(context, "--ssl-ca-certs", self.ssl_ca_certs)

    def client_context(self) -> ssl.SSLContext | None:
        """How https:// URLs of the fleet are called, None for the usual way. The server's
        certificate is also its own where it is a client."""
        if not (self.ca_certs or self.ssl_certfile):
            return None
        context = ssl.create_default_context()
        if self.ca_certs:
            _load_authorities(context, "--ca-certs", self.ca_certs)
        if self.ssl_certfile:
            self._load_own(context)
        return context

    def _load_own(self, context: ssl.SSLContext) -> None:
        try:
            context.load_cert_chain(self.ssl_certfile, self.ssl_keyfile or None)
        except OSError as error:  # SSLError is one
            reason = error.strerror or str(error)
            raise ConfigError(f"--ssl-certfile, --ssl-keyfile: cannot be used: {reason}") from None


def _load_authorities(context: ssl.SSLContext, flag: str, path: str) -> None:
    try:
        context.load_verify_locations(path)
    except OSError as error:
        raise ConfigError(f"{flag}: {path} cannot be used: {error.strerror or error}") from None
