"""`triptych list`: keeps a master told of workers that cannot register, such as vLLM's."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from protocol.errors import ConfigError
from protocol.flag_lists import parse_urls, urls
from protocol.options import option, seconds
from protocol.settings import resolve
from triptych.launch.vllm import tell_master


@dataclass(frozen=True)
class ListConfig:
    """Resolved once at start."""

    workers: str = option(
        "",
        "JSON file with a list of the bodies of POST /instances: role, url and, of workers that"
        " publish KV events, events.",
        "path",
        section="Workers",
    )
    master_url: str = urls("Comma-separated URLs of the masters.")
    admin_api_key: str = option(
        "", "The masters' --admin-api-key.", "key", env="ADMIN_API_KEY", secret=True
    )
    interval: float = seconds(
        30.0,
        "Pause before the workers are listed again, for masters that have restarted. 0: list once.",
        minimum=0,
    )


def read_workers(path: str) -> list[dict[str, Any]]:
    """`ConfigError` unless the file is a list of objects."""
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=list[dict[str, Any]])
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"--workers {path}: {error}") from None


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 once listed, 1 if a master refuses or workers are not well, 2 for a bad
    configuration."""
    try:
        config = resolve(ListConfig, sys.argv[1:] if argv is None else argv, prog="triptych list")
        masters, workers = _wanted(config)
    except ConfigError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 2
    while True:
        listed = [_listed(master, config.admin_api_key, workers) for master in masters]
        if not config.interval:
            return 0 if all(listed) else 1
        time.sleep(config.interval)


def _wanted(config: ListConfig) -> tuple[list[str], list[dict[str, Any]]]:
    masters = parse_urls("--master-url", config.master_url)
    if not masters:
        raise ConfigError("--master-url: give the URL of each master that is to have the list")
    return masters, read_workers(config.workers)


def _listed(master: str, key: str, workers: Sequence[dict[str, Any]]) -> bool:
    try:
        tell_master(master, key, workers)
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return False
    print(f"{len(workers)} workers are listed at {master} and well", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
