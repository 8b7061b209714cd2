"""Settings of the frontend: one frozen dataclass, with limits that are safe by default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protocol.errors import ConfigError


@dataclass(frozen=True)
class MediaConfig:
    """Where media may come from and how large it may be.

    `allowed_domains`: when not empty, only these hosts are fetched from. Addresses that are not
    public (private, loopback, link-local, reserved) need `allow_private` in any case.
    `allowed_local_path`: the folder that `file://` may read, None for nowhere. Of all requests
    under way `memory_bytes` are held in memory, the rest in files of `spill_folder`.
    """

    allow_private: bool = False
    allowed_domains: frozenset[str] = frozenset()
    allowed_local_path: Path | None = None
    max_bytes: int = 64 << 20
    max_pixels: int = 64_000_000
    timeout_s: float = 10.0
    max_redirects: int = 3
    memory_bytes: int = 1 << 30
    spill_folder: Path | None = None

    def __post_init__(self) -> None:
        for name, value in (
            ("--max-media-bytes", self.max_bytes),
            ("--max-media-pixels", self.max_pixels),
            ("--media-timeout", self.timeout_s),
        ):
            if value <= 0:
                raise ConfigError(f"{name}: {value} is not positive")
        if self.max_redirects < 0:
            raise ConfigError(f"max_redirects: {self.max_redirects} is negative")
        if self.memory_bytes < 0:
            raise ConfigError(f"--media-memory-bytes: {self.memory_bytes} is negative")
        for name, path in (
            ("--allowed-local-media-path", self.allowed_local_path),
            ("--media-spill-path", self.spill_folder),
        ):
            if path is not None and not path.is_dir():
                raise ConfigError(f"{name}: {path} is not a folder")


@dataclass(frozen=True)
class FrontendConfig:
    """`model` is a model directory.

    `served_model_names`: names clients may use, the first one is answered; empty means the path
    given as `model`. `chat_template` is a file or the template itself. `generation_defaults`: take
    temperature, top_p and the like from generation_config.json, as vLLM does.
    `mm_processor_kwargs` override options of the media processor; the encoder must have the same.
    `max_references`: how many pictures seen before a client may refer to by uuid alone.
    """

    model: Path
    served_model_names: tuple[str, ...] = ()
    max_model_len: int | None = None
    chat_template: str | None = None
    generation_defaults: bool = True
    limit_mm_per_prompt: int = 32
    allow_references: bool = True
    max_references: int = 4096
    media: MediaConfig = MediaConfig()
    mm_processor_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.model.is_dir():
            raise ConfigError(
                f"--model: {self.model} is not a directory{_where_to_get(self.model)}"
            )
        if self.max_model_len is not None and self.max_model_len < 1:
            raise ConfigError(f"--max-model-len: {self.max_model_len} is not positive")
        if self.limit_mm_per_prompt < 0:
            raise ConfigError(f"--limit-mm-per-prompt: {self.limit_mm_per_prompt} is negative")

    @property
    def names(self) -> tuple[str, ...]:
        return self.served_model_names or (str(self.model),)


def _where_to_get(model: Path) -> str:
    """What to do about a name of the hub, which looks like a path that is not there."""
    if model.is_absolute() or len(model.parts) != 2 or model.parent.exists():
        return ""
    return f"; to download it: hf download {model} --local-dir DIR, then --model DIR"
