"""The secret that the processes of one fleet share: what it is, how it is shown, how it is checked.

A process that has it may call every control route of masters and workers, and speak to engines over
ZMQ (`protocol.curve`). It says nothing about clients, which have API keys.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from blake3 import blake3

from protocol.errors import ConfigError, Unauthorized
from protocol.options import option

HEADER = "x-triptych-fleet-key"
REFUSED = "invalid_fleet_key"
"""The code of the error by which a process refuses a call without the key."""
_SHORTEST, _LONGEST = 16, 1024


@dataclass(frozen=True)
class FleetKey:
    """False if there is none: everything is open then."""

    secret: str = field(default="", repr=False)

    def __bool__(self) -> bool:
        return bool(self.secret)

    @property
    def headers(self) -> Mapping[str, str]:
        """What a call to another process of the fleet brings; a client must not follow redirects
        with it."""
        return {HEADER: self.secret} if self.secret else {}

    def admits(self, given: bytes) -> bool:
        """Whether `given`, the value of `HEADER`, is the key; takes as long for any guess."""
        return hmac.compare_digest(given, self.secret.encode())

    def derived(self, purpose: str) -> bytes:
        """32 secret bytes that are good for one purpose, and tell nothing of the key."""
        return blake3(self.secret.encode(), derive_key_context=f"triptych fleet {purpose}").digest()


NO_KEY = FleetKey()


def no_fleet_key() -> Unauthorized:
    """What a call without the key is answered with."""
    return Unauthorized(
        f"this route is for processes of the fleet: the {HEADER} header is missing or is not the"
        " value of --fleet-key",
        code=REFUSED,
    )


def refuses_key(status: int, content: object) -> bool:
    """Whether an answer says that our fleet key is not the other side's."""
    error = content.get("error") if isinstance(content, dict) else None
    return (
        status == Unauthorized.status and isinstance(error, dict) and error.get("code") == REFUSED
    )


def check_secret(text: str, shortest: int = _SHORTEST) -> None:
    """`ConfigError` unless a header can carry it and it cannot be guessed; "" is no key."""
    if not text:
        return
    if not (text.isascii() and text.isprintable()) or " " in text:
        raise ConfigError("only printable ASCII characters without spaces make a key")
    if not shortest <= len(text) <= _LONGEST:
        raise ConfigError(f"a key has from {shortest} to {_LONGEST} characters")


def read_secrets(flag: str, path: str) -> list[str]:
    """The lines of a file of keys, without blank ones and those that begin with #. `ConfigError` if
    it cannot be read or holds none."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{flag}: {path} cannot be read: {reason}") from None
    found = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not found:
        raise ConfigError(f"{flag}: {path} holds no key")
    return found


@dataclass(frozen=True)
class FleetOptions:
    """The flags by which a process is told the key, or to do without."""

    fleet_key: str = option(
        "",
        "Secret that all masters, workers and proxies of a fleet share; control routes and ZMQ"
        " connections need it. Empty: they are open to all that reach them.",
        "key",
        check=check_secret,
        secret=True,
        section="Fleet key",
    )
    fleet_key_file: str = option(
        "", "File that holds the value of --fleet-key, which it takes the place of.", "path"
    )

    allow_unprotected: bool = option(
        False,
        "Listen on addresses that other machines reach although no key is asked for; without this"
        " flag such a --host is refused.",
    )

    def read_fleet_key(self) -> FleetKey:
        """`ConfigError` if the file holds no key, or both flags are given."""
        if not self.fleet_key_file:
            return FleetKey(self.fleet_key)
        if self.fleet_key:
            raise ConfigError("--fleet-key, --fleet-key-file: give one of them")
        found = read_secrets("--fleet-key-file", self.fleet_key_file)
        if len(found) > 1:
            raise ConfigError(f"--fleet-key-file: {self.fleet_key_file} holds more than one key")
        try:
            check_secret(found[0])
        except ConfigError as error:
            raise ConfigError(f"--fleet-key-file: {error.message}") from None
        return FleetKey(found[0])
