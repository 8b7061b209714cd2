"""Settings of the frontend: one frozen dataclass, with limits that are safe by default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protocol.bounds import MOST_RATE
from protocol.errors import ConfigError
from services.frontend.clips.limits import ClipLimits
from services.frontend.parsing.reading import AUTO


@dataclass(frozen=True)
class MediaConfig:
    """Where media may come from and how large it may be."""

    # fetch from private, loopback, link-local and reserved addresses too
    allow_private: bool = False
    allowed_domains: frozenset[str] = frozenset()  # when not empty, the only hosts to fetch from
    allowed_local_path: Path | None = None  # the folder that file:// may read, None for nowhere
    max_bytes: int = 64 << 20  # bytes of one item
    max_pixels: int = 64_000_000  # pixels of one picture, or of a frame of a clip
    max_video_seconds: float = 600.0  # seconds that one clip lasts
    video_timeout_s: float = 20.0  # seconds in which a clip must be read
    video_memory_bytes: int = 2 << 30  # bytes of memory in which it must be read
    video_readers: int = 2  # clips that are read at a time
    timeout_s: float = 10.0  # seconds to fetch one item
    max_redirects: int = 3  # redirects to follow
    memory_bytes: int = 1 << 30  # bytes of all items held in memory; the rest goes to files
    spill_folder: Path | None = None  # where these files lie, None for the system's folder

    def __post_init__(self) -> None:
        for name, value in (
            ("--max-media-bytes", self.max_bytes),
            ("--max-media-pixels", self.max_pixels),
            ("--max-video-duration", self.max_video_seconds),
            ("--media-timeout", self.timeout_s),
            ("--video-timeout", self.video_timeout_s),
            ("--video-memory-bytes", self.video_memory_bytes),
            ("--video-readers", self.video_readers),
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

    @property
    def clips(self) -> ClipLimits:
        return ClipLimits(
            max_pixels=self.max_pixels,
            max_seconds=self.max_video_seconds,
            read_s=self.video_timeout_s,
            memory_bytes=self.video_memory_bytes,
        )


@dataclass(frozen=True)
class FrontendConfig:
    """What a frontend is made of."""

    model: Path  # a model directory
    # names clients may use, the first is answered; empty: the path
    served_model_names: tuple[str, ...] = ()
    allow_long_max_model_len: bool = False  # whether that may be above the model's own limit
    max_model_len: int | None = None  # tokens of prompt and output, None for the model's own limit
    chat_template: str | None = None  # a file or the template itself, None for the model's own
    trust_request_chat_template: bool = False  # take chat templates from requests
    # take temperature, top_p and the like from generation_config.json, as vLLM does
    generation_defaults: bool = True
    limit_mm_per_prompt: int = 32  # media items of one request
    allow_references: bool = True  # whether a client may name media by uuid alone
    max_references: int = 4096  # pictures seen before that are remembered by uuid
    min_priority: int = 0  # the smallest `priority` of a request; lower values run first
    media: MediaConfig = MediaConfig()  # where media may come from
    # options of the media processor for requests that bring none, and the most that these may ask
    mm_processor_kwargs: Mapping[str, Any] = field(default_factory=dict)
    allow_clips: bool = True  # whether clients may send clips
    video_fps: float = 2.0  # frames that are taken of a clip's second
    max_video_frames: int = 768  # frames that are taken of one clip at most
    max_video_tokens: int = 32_768  # tokens of one clip at most
    tool_call_parser: str = AUTO  # how tool calls are read, a name of `parsing.reading`
    reasoning_parser: str = AUTO  # how reasoning is read
    task: str = "auto"  # what the model does, one of `protocol.pooling.TASKS`
    show_tokenizer: bool = False  # whether clients may see the tokenizer's configuration

    def __post_init__(self) -> None:
        if not self.model.is_dir():
            raise ConfigError(f"--model: {self.model} is not a directory")
        if self.max_model_len is not None and self.max_model_len < 1:
            raise ConfigError(f"--max-model-len: {self.max_model_len} is not positive")
        if self.limit_mm_per_prompt < 0:
            raise ConfigError(f"--limit-mm-per-prompt: {self.limit_mm_per_prompt} is negative")
        if not 0 < self.video_fps <= MOST_RATE:
            raise ConfigError(f"--video-fps: {self.video_fps} is not within 0 and {MOST_RATE:g}")
        if self.max_video_frames < 2:
            raise ConfigError(f"--max-video-frames: {self.max_video_frames} is less than 2")
        if self.min_priority > 0:
            raise ConfigError(
                f"--min-priority: {self.min_priority} is more than 0, the priority of requests "
                "that state none"
            )

    @property
    def names(self) -> tuple[str, ...]:
        return self.served_model_names or (str(self.model),)
