"""Messages of a chat as types, and how they are read."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from protocol.chat_members import CALL, CALLED, INPUT_AUDIO, MEDIA_URL, MESSAGE, PART
from protocol.members import Members

Json = dict[str, Any]
_MEDIA: Mapping[str, Members] = MappingProxyType(
    {
        "image_url": MEDIA_URL,
        "video_url": MEDIA_URL,
        "audio_url": MEDIA_URL,
        "input_audio": INPUT_AUDIO,
    }
)


class MediaURL(msgspec.Struct):
    url: str


class InputAudio(msgspec.Struct):
    """`data`: base64 of a file, which `format` names, as wav."""

    data: str
    format: str


class ContentPart(msgspec.Struct):
    """One part of a message. Which of the fields must be there follows from `type`.

    `image_url` null with a `uuid` refers to a picture sent before under that name. `image_embeds`
    holds the metadata of a picture whose embeddings `uuid` (its mm_hash) names.
    `video_url` and `video_embeds` are the same for clips, `audio_url` and `audio_embeds` for audio,
    which `input_audio` holds itself. `others`: what else the part has, for chat templates; so have
    calls and messages. It is no member of theirs.
    """

    type: str
    text: str | None = None
    image_url: MediaURL | str | UnsetType | None = UNSET
    image_embeds: Any = UNSET
    video_url: MediaURL | str | UnsetType | None = UNSET
    video_embeds: Any = UNSET
    audio_url: MediaURL | str | UnsetType | None = UNSET
    input_audio: InputAudio | UnsetType | None = UNSET
    audio_embeds: Any = UNSET
    refusal: str | None = None
    uuid: str | None = None
    others: dict[str, Any] | None = None


class FunctionCall(msgspec.Struct):
    """`arguments` is JSON text; an object is accepted too."""

    name: str
    arguments: str | dict[str, Any] | None = None
    others: dict[str, Any] | None = None


class ToolCall(msgspec.Struct):
    function: FunctionCall
    id: str | None = None
    type: str | None = None
    others: dict[str, Any] | None = None


class ChatMessage(msgspec.Struct):
    role: str
    content: str | list[str | ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    thinking: str | None = None
    others: dict[str, Any] | None = None


def read_message(given: Json, where: str) -> ChatMessage:
    """The message at the path `where`, as it was decoded; `InvalidRequest` names the member that is
    not what it must be."""
    for name, read in (("content", _part), ("tool_calls", _call)):
        value = given.get(name)
        if isinstance(value, list):
            one = [read(each, f"{where}.{name}[{i}]") for i, each in enumerate(value)]
            given = {**given, name: one}
    return MESSAGE.converted(given, ChatMessage, where)


# What is no object stays as it is: the struct around it says what it must be.


def _part(part: Any, where: str) -> Any:
    if not isinstance(part, dict):
        return part
    for name in _MEDIA.keys() & part.keys():
        if isinstance(source := part[name], dict):
            part = {**part, name: _MEDIA[name].honoured(source, f"{where}.{name}")}
    return PART.converted(part, ContentPart, where)


def _call(call: Any, where: str) -> Any:
    if not isinstance(call, dict):
        return call
    if isinstance(called := call.get("function"), dict):
        function = CALLED.converted(called, FunctionCall, f"{where}.function")
        call = {**call, "function": function}
    return CALL.converted(call, ToolCall, where)
