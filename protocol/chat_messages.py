"""Messages of a chat as types, and how they are read."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from protocol.chat_members import CALL, CALLED, INPUT_AUDIO, MEDIA_URL, MESSAGE, PART
from protocol.request_fields import Members

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
    """One part of a message."""

    type: str  # which of the other fields must be there
    text: str | None = None  # of the type text
    # null with a `uuid`: a picture sent before under that name
    image_url: MediaURL | str | UnsetType | None = UNSET
    image_embeds: Any = UNSET  # metadata of a picture whose embeddings `uuid` (its mm_hash) names
    video_url: MediaURL | str | UnsetType | None = UNSET  # as `image_url`, of a clip
    video_embeds: Any = UNSET  # as `image_embeds`, of a clip
    audio_url: MediaURL | str | UnsetType | None = UNSET  # as `image_url`, of audio
    input_audio: InputAudio | UnsetType | None = UNSET  # audio itself, in base64
    audio_embeds: Any = UNSET  # as `image_embeds`, of audio
    refusal: str | None = None  # what a model said that refused
    uuid: str | None = None  # the client's name of the medium
    # what else it has, for chat templates; no member of theirs
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
    """A turn of a chat."""

    role: str  # as the chat template knows it
    content: str | list[str | ContentPart] | None = None  # a text, or parts
    name: str | None = None  # of who speaks
    tool_calls: list[ToolCall] | None = None  # calls that the model has made
    tool_call_id: str | None = None  # the call that a tool message answers
    refusal: str | None = None  # what a model said that refused
    reasoning: str | None = None  # what a model thought before it answered
    reasoning_content: str | None = None  # the same under an older name
    thinking: str | None = None  # the same, for templates that read it so
    # what else it has, for chat templates; no member of theirs
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
