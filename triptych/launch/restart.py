"""`triptych restart`: a running `triptych serve` restarts its processes one at a time."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from protocol.errors import ConfigError
from protocol.options import option, seconds
from protocol.settings import resolve
from triptych.launch.control import Restart, ask
from triptych.launch.rolling import ORDER


def parse_roles(text: str) -> list[str]:
    """Those named, in the order in which they are restarted; `ConfigError` if one is none."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if unknown := [word for word in words if word not in ORDER]:
        raise ConfigError(f"--roles: {unknown[0]!r} is not one of {', '.join(ORDER)}")
    return [role for role in ORDER if role in words]


@dataclass(frozen=True)
class RestartConfig:
    """Resolved once at start."""

    log_path: str = option(
        "logs",
        "Folder of the logs of the stack that is to be restarted, as triptych serve was told it.",
        "path",
        env="LOG_PATH",
    )
    roles: str = option(
        ",".join(ORDER),
        "Comma-separated roles whose processes are restarted, in this order.",
        "roles",
        check=parse_roles,
    )
    patience: float = seconds(
        120.0,
        "How long a worker may take to finish its requests before it is told to stop; it has"
        " the stack's --shutdown-timeout then.",
        minimum=0,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 once all are restarted, 1 if a process did not come back or the stack ended,
    2 for a bad configuration."""
    try:
        words = sys.argv[1:] if argv is None else argv
        config = resolve(RestartConfig, words, prog="triptych restart")
        wanted = Restart(parse_roles(config.roles), config.patience)
        for said in ask(Path(config.log_path), wanted):
            if said.line:
                print(said.line, flush=True)
            if said.status is not None:
                return said.status
    except ConfigError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 2
    except (OSError, msgspec.DecodeError) as error:
        print(f"error: the stack does not answer any more: {error}", file=sys.stderr)
        return 1
    print("error: the stack has ended", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
