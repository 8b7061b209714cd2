"""The flags that make a frontend, shared by every process that has one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from protocol.settings import option
from services.frontend.config import FrontendConfig, MediaConfig


@dataclass(frozen=True)
class FrontendOptions:
    """Named as vLLM's; `to_config` checks them."""

    model: str = option("models/demo", "model directory", env="MODEL")
    served_model_name: str = option("", "names clients use, comma-separated; the path if empty")
    max_model_len: int = option(0, "prompt and output together, 0 for the model's own limit")
    limit_mm_per_prompt: int = option(32, "media items of one request")
    allowed_local_media_path: str = option("", "folder that file:// media may come from")
    allowed_media_domains: str = option("", "hosts media may come from, comma-separated")
    allow_private_media: bool = option(False, "fetch media from private addresses too")
    max_media_bytes: int = option(64 << 20, "largest media item")
    max_media_pixels: int = option(64_000_000, "largest picture")
    allow_media_references: bool = option(True, "let clients name media by uuid alone")
    chat_template: str = option("", "chat template, a file or the text itself")
    media_timeout: float = option(10.0, "seconds to fetch one media item")
    media_memory_bytes: int = option(1 << 30, "media of requests under way, more goes to files")
    media_spill_path: str = option("", "folder for those files; that of the system if empty")

    def to_config(self) -> FrontendConfig:
        """`ConfigError` names what is wrong."""
        local = self.allowed_local_media_path
        return FrontendConfig(
            model=Path(self.model),
            served_model_names=_names(self.served_model_name) or (self.model,),
            max_model_len=self.max_model_len or None,
            chat_template=self.chat_template or None,
            limit_mm_per_prompt=self.limit_mm_per_prompt,
            allow_references=self.allow_media_references,
            media=MediaConfig(
                allow_private=self.allow_private_media,
                allowed_domains=frozenset(_names(self.allowed_media_domains)),
                allowed_local_path=Path(local) if local else None,
                max_bytes=self.max_media_bytes,
                max_pixels=self.max_media_pixels,
                timeout_s=self.media_timeout,
                memory_bytes=self.media_memory_bytes,
                spill_folder=Path(self.media_spill_path) if self.media_spill_path else None,
            ),
        )


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
