"""Where a model lies and what its weights are called: a directory, the demonstration model of this
package, the hub's cache."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from protocol.errors import ConfigError

# The second name is the model's path in a checkout, which stays right where there is none.
DEMO_NAMES = ("demo", "models/demo")
_DEMO = Path(__file__).with_name("demo")


def find_model(name: str, environ: Mapping[str, str] | None = None) -> Path:
    """The directory of a model that is given by its path, as demo, or by its name at the hub, which
    is looked for in the hub's local cache: nothing is downloaded. `ConfigError` says how to get it.
    """
    path = Path(name)
    if path.is_dir():
        return path
    if name in DEMO_NAMES:
        return _DEMO
    if not _may_be_hub_name(path):
        raise ConfigError(f"--model: {name} is not a directory")
    folder = _hub_cache(os.environ if environ is None else environ)
    snapshot = _snapshot(folder / f"models--{name.replace('/', '--')}")
    if snapshot is None:
        raise ConfigError(
            f"--model: {name} is not a directory and not in the cache {folder};"
            f" to download it: hf download {name}"
        )
    return snapshot


def _may_be_hub_name(path: Path) -> bool:
    """Whether it is ORGANISATION/MODEL and not a slip in a path whose first part is there."""
    parts = path.parts
    return (
        not path.is_absolute()
        and len(parts) == 2
        and parts[0] not in (".", "..", "~")
        # models/typo is a slip if models/ is there.
        and not (path.parent.exists())
    )


def _hub_cache(environ: Mapping[str, str]) -> Path:
    """As huggingface_hub finds it, which a proxy need not have installed."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environ.get(variable):
            return Path(environ[variable]).expanduser()
    if environ.get("HF_HOME"):
        return Path(environ["HF_HOME"]).expanduser() / "hub"
    cache = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "huggingface" / "hub"


def _snapshot(model: Path) -> Path | None:
    """The downloaded version of the branch main, or the only one that there is."""
    try:
        commit = (model / "refs" / "main").read_text(encoding="utf-8").strip()
    except OSError:
        versions = [path for path in model.glob("snapshots/*") if path.is_dir()]
        return versions[0] if len(versions) == 1 else None
    found = model / "snapshots" / commit
    return found if found.is_dir() else None


def weights_name(path: Path) -> str:
    """The hub's name if the path is in its cache, else the directory's own."""
    resolved = path.resolve()
    hub = resolved.parent.parent.name
    if resolved.parent.name == "snapshots" and hub.startswith("models--"):
        return hub.removeprefix("models--").replace("--", "/")
    return resolved.name
