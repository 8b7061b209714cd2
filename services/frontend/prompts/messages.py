"""Messages of a chat request as the chat template reads them, and the media they hold.

Content becomes a list of parts: {"type": "text", "text": …} and those of media, as `media_part` has
them; a message that came with a string keeps it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from msgspec import UNSET

from protocol.chat_messages import (
    ChatMessage,
    ContentPart,
    InputAudio,
    MediaURL,
)
from protocol.encoder_cache import MAX_NAME_CHARS
from protocol.errors import InvalidRequest
from protocol.types import Modality
from services.frontend.audio.formats import check_said
from services.frontend.media.fetching import beginning
from services.frontend.prompts.calls import check_arguments, tool_call
from services.frontend.prompts.template import Message, media_part

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_MEDIA: Mapping[str, Modality] = MappingProxyType(
    {
        "image_url": "image",
        "image_embeds": "image",
        "video_url": "video",
        "video_embeds": "video",
        "audio_url": "audio",
        "input_audio": "audio",
        "audio_embeds": "audio",
    }
)
_NOUNS: Mapping[str, str] = MappingProxyType(
    {"image": "picture", "video": "clip", "audio": "piece of audio"}
)


@dataclass(frozen=True)
class MediaPart:
    """One picture, clip or piece of audio of a request, in prompt order.

    Exactly one of: `url` (to fetch), `metadata` (embeddings exist already, which `uuid` names), or
    neither, which refers to one sent before under `uuid`. `param` names its field.
    """

    param: str
    url: str | None = None
    metadata: dict[str, Any] | None = None
    uuid: str | None = None
    modality: Modality = "image"


@dataclass(frozen=True)
class Chat:
    messages: list[Message]
    media: list[MediaPart]

    @property
    def num_chars(self) -> int:
        """Characters of all text in the messages' content."""
        contents = (message.get("content") or "" for message in self.messages)
        return sum(
            len(c) if isinstance(c, str) else sum(len(part.get("text", "")) for part in c)
            for c in contents
        )


def read_messages(messages: list[ChatMessage], modalities: Collection[Modality]) -> Chat:
    """Check messages and sort out their media; `InvalidRequest` names the field at fault."""
    if not messages:
        raise InvalidRequest("messages must not be empty", param="messages")
    check_arguments(messages)
    media: list[MediaPart] = []
    return Chat(
        [
            _message(message, f"messages[{index}]", modalities, media)
            for index, message in enumerate(messages)
        ],
        media,
    )


def _message(
    message: ChatMessage, where: str, modalities: Collection[Modality], media: list[MediaPart]
) -> Message:
    if message.role not in ROLES:
        raise InvalidRequest(
            f"role must be one of {', '.join(ROLES)}, not '{message.role}'", param=f"{where}.role"
        )
    fields: Message = {**(message.others or {}), "role": message.role}
    content = _content(message, where, modalities, media)
    if content is not None:
        fields["content"] = content
    if message.tool_calls:
        fields["tool_calls"] = [
            tool_call(call, f"{where}.tool_calls[{index}]")
            for index, call in enumerate(message.tool_calls)
        ]
    for name in ("name", "tool_call_id", "refusal"):
        if getattr(message, name) is not None:
            fields[name] = getattr(message, name)
    return {**fields, **_reasoning(message)}


def _reasoning(message: ChatMessage) -> dict[str, str]:
    """Reasoning under the names that templates read it by, as transformers does."""
    names = ("reasoning_content", "thinking", "reasoning")
    given = {name: value for name in names if (value := getattr(message, name)) is not None}
    if not given:
        return {}
    first = next(iter(given.values()))
    return {"thinking": first, **given, "reasoning_content": first}


def _content(
    message: ChatMessage, where: str, modalities: Collection[Modality], media: list[MediaPart]
) -> str | list[dict[str, Any]] | None:
    content, where = message.content, f"{where}.content"
    if content is None and message.role == "assistant":
        return None
    if content is None or (_is_empty(content) and message.role == "user"):
        raise InvalidRequest("content must not be empty", param=where)
    if isinstance(content, str):
        return content
    return [_part(p, f"{where}[{i}]", modalities, media) for i, p in enumerate(content)]


def _is_empty(content: str | list[str | ContentPart]) -> bool:
    if isinstance(content, str):
        return not content
    return not any(part if isinstance(part, str) else part.text != "" for part in content)


def _part(
    part: str | ContentPart, where: str, modalities: Collection[Modality], media: list[MediaPart]
) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if part.type in ("text", "input_text", "output_text", "refusal"):
        name = "refusal" if part.type == "refusal" else "text"
        text = _required(getattr(part, name), f"{where}.{name}")
        return {**(part.others or {}), "type": "text", "text": text}
    modality = _MEDIA.get(part.type)
    if modality is None:
        raise InvalidRequest(f"unknown content type '{part.type}'", param=f"{where}.type")
    _require(modality, modalities, where)
    media.append(_medium(part, modality, where))
    return {**(part.others or {}), **media_part(modality)}


def _required(value: str | None, where: str) -> str:
    if value is None:
        raise InvalidRequest(f"{where.rpartition('.')[2]} is missing", param=where)
    return value


def _require(modality: Modality, modalities: Collection[Modality], where: str) -> None:
    if modality not in modalities:
        raise _unsupported(f"this model takes no {modality} input", where)


def _unsupported(message: str, where: str) -> InvalidRequest:
    return InvalidRequest(message, param=where, code="unsupported_media")


def _medium(part: ContentPart, modality: Modality, where: str) -> MediaPart:
    if len(part.uuid or "") > MAX_NAME_CHARS:
        raise InvalidRequest(
            f"uuid must not have more than {MAX_NAME_CHARS} characters", param=f"{where}.uuid"
        )
    if part.type.endswith("_embeds"):
        return _reference(part, modality, where)
    name, source = part.type, getattr(part, part.type)
    where = f"{where}.{name}"
    if source is UNSET:
        raise InvalidRequest(f"{name} is missing", param=where)
    if source is None:
        if not part.uuid:
            raise InvalidRequest(f"{name} may be null only beside a uuid", param=where)
        return MediaPart(where, uuid=part.uuid, modality=modality)
    if isinstance(source, MediaURL):
        return MediaPart(f"{where}.url", url=source.url, uuid=part.uuid, modality=modality)
    if isinstance(source, InputAudio):
        url = _data_url(source, where)
        return MediaPart(f"{where}.data", url=url, uuid=part.uuid, modality=modality)
    assert isinstance(source, str)
    return MediaPart(where, url=source, uuid=part.uuid, modality=modality)


def _data_url(source: InputAudio, where: str) -> str:
    """The audio as other media come. `InvalidRequest` if its format is another than it says."""
    url = f"data:;base64,{source.data}"
    check_said(source.format, beginning(url), f"{where}.format")
    return url


def _reference(part: ContentPart, modality: Modality, where: str) -> MediaPart:
    """Embeddings by their mm_hash, or by the uuid under which an encoder reported them."""
    name, metadata = part.type, getattr(part, part.type)
    if not isinstance(metadata, dict):
        raise _unsupported(
            f"{name} must be the metadata of a {_NOUNS[modality]} whose embeddings uuid names",
            f"{where}.{name}",
        )
    if not part.uuid:
        raise InvalidRequest(f"{name} needs a uuid that names them", param=f"{where}.uuid")
    return MediaPart(f"{where}.{name}", metadata=metadata, uuid=part.uuid, modality=modality)
