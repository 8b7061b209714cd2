"""The flags that make a frontend, shared by every process that has one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from protocol.bounds import MOST_RATE
from protocol.options import count, option, seconds, size
from protocol.pooling import TASKS
from services.frontend.config import FrontendConfig, MediaConfig
from services.frontend.media.pixel_bounds import parse_kwargs
from services.frontend.model_folder import find_model
from services.frontend.parsing.reading import AUTO, THINKING_NAMES, TOOL_NAMES


@dataclass(frozen=True)
class FrontendOptions:
    """Named as vLLM's; `to_config` checks what concerns the file system."""

    model: str = option(
        "models/demo",
        "Directory of the model: config.json, tokenizer.json and weights, as the hub has them; or"
        " its name at the hub, if the hub's local cache has it; or demo.",
        "path",
        env="MODEL",
        section="Model",
    )
    served_model_name: str = option(
        "",
        "Comma-separated names by which clients may call the model; the first one is shown in"
        " answers. Empty: the value of --model.",
        "names",
    )
    task: str = option(
        "auto",
        "What the model does. generate: text. embed: a vector for each input. score: how well a"
        " document answers a query, by the logits of yes and no after the last token, or by an"
        " encoder's head. classify: how likely each label of an encoder's head is. auto: as"
        " modules.json of Sentence Transformers and the head say, text without them.",
        choices=TASKS,
        section="Model",
    )
    max_model_len: int = count(
        0,
        "Longest request, prompt and output together. 0: the limit in the model's configuration.",
        "tokens",
        minimum=0,
    )
    allow_long_max_model_len: bool = option(
        False,
        "Take a --max-model-len above the limit in the model's configuration. What the model writes"
        " beyond that may be worthless.",
        env="VLLM_ALLOW_LONG_MAX_MODEL_LEN",
    )
    limit_mm_per_prompt: int = count(
        32,
        "Media items that one request may bring.",
        "items",
        minimum=0,
        maximum=4096,
        section="Media",
    )
    mm_processor_kwargs: str = option(
        "",
        "How large pictures and a clip's frames become, for models that resize each by its own"
        " size: a JSON object with min_pixels and max_pixels, or size, as transformers' processor"
        " takes them; of clips also fps, or num_frames. A request may ask for less. Empty: as the"
        " model's preprocessor_config.json says.",
        "json",
    )
    allowed_local_media_path: str = option(
        "", "Folder that file:// URLs of media may name files of. Empty: they are refused.", "path"
    )
    allowed_media_domains: str = option(
        "",
        "Comma-separated hosts that media may be fetched from. Empty: any public host.",
        "hosts",
    )
    allow_private_media: bool = option(
        False, "Also fetch media from private, loopback and link-local addresses."
    )
    max_media_bytes: int = size(
        64 << 20, "Largest media item, as fetched or decoded from a data URL."
    )
    max_media_pixels: int = count(
        64_000_000,
        "Largest picture, or frame of a clip, width times height; a larger one is refused. A frame"
        " has 8192 x 4320 at most.",
        "pixels",
    )
    allow_clips: bool = option(
        True,
        "Take clips (video_url) and compressed audio, if the model has them and the extra video is"
        " installed. FFmpeg reads both; without this flag it is not used.",
    )
    video_fps: float = option(
        2.0,
        "Frames that the model sees of each second of a clip, unless the request says otherwise."
        " Clips need the extra video, on proxies and on encoders.",
        "frames",
        above=0.0,
        maximum=MOST_RATE,
    )
    max_video_frames: int = count(
        768,
        "Frames that the model sees of one clip at most; of a longer one they lie further apart.",
        "frames",
        minimum=2,
        maximum=65_536,
    )
    max_video_tokens: int = count(
        32_768,
        "Tokens that one clip may become; one that becomes more is refused. Its encoder needs some"
        " 25 KB of memory for each.",
        "tokens",
    )
    max_video_duration: float = seconds(600.0, "How long a clip may last; a longer one is refused.")
    video_timeout: float = seconds(
        20.0,
        "How long it may take to read a clip, on the proxy and again on the encoder. FFmpeg does so"
        " in processes of its own, which are killed after that time.",
    )
    video_memory_bytes: int = size(
        2 << 30,
        "Memory that such a process may have beside its code. 4K takes some 300 MB.",
        minimum=64 << 20,
    )
    video_readers: int = count(
        2,
        "Clips that are read at a time, by each process of a proxy and by each encoder; others"
        " wait.",
        "processes",
        maximum=64,
    )
    allow_media_references: bool = option(
        True, "Let a client name a picture of an earlier request by its uuid, without its bytes."
    )
    chat_template: str = option(
        "",
        "Chat template: a file, or the Jinja text itself. Empty: the model's own.",
        "template",
        section="Model",
    )
    tool_call_parser: str = option(
        AUTO,
        "Form in which the model writes tool calls. auto: as its chat template shows. none: calls"
        " stay in the text.",
        choices=TOOL_NAMES,
    )
    reasoning_parser: str = option(
        AUTO,
        "Form in which the model writes its reasoning. auto: as its chat template shows. none:"
        " reasoning stays in the text.",
        choices=THINKING_NAMES,
    )
    trust_request_chat_template: bool = option(
        False,
        "Let a request bring a chat template of its own. Templates run in a sandbox here, but one"
        " may take any time: only for clients that are trusted.",
    )
    min_priority: int = option(
        0,
        "Smallest priority that a request may state; lower values run earlier. 0, which is also the"
        " priority of requests that state none: no request overtakes the others.",
        "priority",
        minimum=-(1 << 31),
        maximum=0,
    )
    enable_tokenizer_info_endpoint: bool = option(
        False, "Show tokenizer_config.json and the chat template at /tokenizer_info."
    )
    response_store_bytes: int = size(
        64 << 20,
        "Memory for answers of /v1/responses that later requests may refer to; the least recently"
        " used go first. 0: none is stored.",
        minimum=0,
    )
    media_timeout: float = seconds(
        10.0, "How long fetching one media item may take.", section="Media"
    )
    media_memory_bytes: int = size(
        1 << 30,
        "Memory for the media of all requests in progress; what exceeds it is held in files of"
        " --media-spill-path.",
        minimum=0,
    )
    media_spill_path: str = option(
        "",
        "Folder for media that exceed --media-memory-bytes. Empty: the system's temporary folder.",
        "path",
    )

    def to_config(self) -> FrontendConfig:
        """`ConfigError` names what is wrong."""
        local = self.allowed_local_media_path
        return FrontendConfig(
            model=find_model(self.model),
            served_model_names=_names(self.served_model_name) or (self.model,),
            max_model_len=self.max_model_len or None,
            allow_long_max_model_len=self.allow_long_max_model_len,
            chat_template=self.chat_template or None,
            trust_request_chat_template=self.trust_request_chat_template,
            limit_mm_per_prompt=self.limit_mm_per_prompt,
            mm_processor_kwargs=parse_kwargs(self.mm_processor_kwargs),
            allow_clips=self.allow_clips,
            video_fps=self.video_fps,
            max_video_frames=self.max_video_frames,
            max_video_tokens=self.max_video_tokens,
            allow_references=self.allow_media_references,
            min_priority=self.min_priority,
            tool_call_parser=self.tool_call_parser,
            reasoning_parser=self.reasoning_parser,
            task=self.task,
            show_tokenizer=self.enable_tokenizer_info_endpoint,
            media=MediaConfig(
                allow_private=self.allow_private_media,
                allowed_domains=frozenset(_names(self.allowed_media_domains)),
                allowed_local_path=Path(local) if local else None,
                max_bytes=self.max_media_bytes,
                max_pixels=self.max_media_pixels,
                max_video_seconds=self.max_video_duration,
                video_timeout_s=self.video_timeout,
                video_memory_bytes=self.video_memory_bytes,
                video_readers=self.video_readers,
                timeout_s=self.media_timeout,
                memory_bytes=self.media_memory_bytes,
                spill_folder=Path(self.media_spill_path) if self.media_spill_path else None,
            ),
        )


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
