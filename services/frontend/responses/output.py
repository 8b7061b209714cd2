"""What a model says as output items, and the events that tell how they grow."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from services.frontend.answers.output import Gain
from services.frontend.parsing.heard import CallPiece

Json = dict[str, Any]


@dataclass
class _Item:
    """One item."""

    kind: str  # message, reasoning or function_call
    number: int  # index of the item in the output
    id: str
    call_id: str = ""  # by which the client answers a call
    name: str = ""  # of the function that is called
    parts: list[str] = field(default_factory=list)  # pieces of its text, or of its arguments
    status: str = "in_progress"  # in_progress, completed or incomplete

    @property
    def text(self) -> str:
        return "".join(self.parts)

    def shown(self) -> Json:
        """As clients see it."""
        begun = {"id": self.id, "type": self.kind, "status": self.status}
        if self.kind == "function_call":
            call = {"call_id": self.call_id, "name": self.name, "arguments": self.text}
            return {**begun, **call}
        content = [self.part()] if self.parts else []
        if self.kind == "reasoning":
            return {**begun, "summary": [], "content": content}
        return {**begun, "role": "assistant", "content": content}

    def part(self, text: str | None = None) -> Json:
        """Its only part of content, which has all its text."""
        text = self.text if text is None else text
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


_PREFIXES: Mapping[str, str] = MappingProxyType(
    {"function_call": "fc", "reasoning": "rs", "message": "msg"}
)
_DELTAS: Mapping[str, str] = MappingProxyType(
    {
        "function_call": "response.function_call_arguments",
        "reasoning": "response.reasoning_text",
        "message": "response.output_text",
    }
)


class OutputItems:
    """Items in the order in which the model begins them; one grows at a time."""

    def __init__(self) -> None:
        self._items: list[_Item] = []
        self._open: _Item | None = None

    def add(self, gain: Gain) -> Iterator[Json]:
        """Events that tell what the answer gained."""
        for part in gain.parts:
            if isinstance(part, CallPiece):
                yield from self._call(part)
            else:
                yield from self._grow("reasoning" if part.thought else "message", part.text)

    def close(self, *, complete: bool = True) -> Iterator[Json]:
        """Events that tell that no more comes. An answer without anything is an empty message."""
        if not self._items:
            yield from self._begin("message")
            yield from self._grow("message", "")
        yield from self._end(complete=complete)

    def shown(self) -> list[Json]:
        return [item.shown() for item in self._items]

    def _call(self, piece: CallPiece) -> Iterator[Json]:
        if piece.id:
            yield from self._begin("function_call", piece)
        if piece.arguments:
            yield from self._grow("function_call", piece.arguments)

    def _grow(self, kind: str, text: str) -> Iterator[Json]:
        if self._open is None or self._open.kind != kind:
            yield from self._begin(kind)
        item = self._open
        assert item is not None
        # OpenAI's streams open a part before its first text; arguments are no part.
        if not item.parts and kind != "function_call":
            yield {"type": "response.content_part.added", **_place(item), "part": item.part("")}
        item.parts.append(text)
        extra: Json = {"logprobs": []} if kind == "message" else {}
        yield {"type": f"{_DELTAS[kind]}.delta", **_place(item), "delta": text, **extra}

    def _begin(self, kind: str, call: CallPiece | None = None) -> Iterator[Json]:
        yield from self._end()
        name = f"{_PREFIXES[kind]}_{uuid.uuid4().hex}"
        item = _Item(kind, len(self._items), name)
        if call is not None:
            item.call_id, item.name = call.id, call.name
        self._items.append(item)
        self._open = item
        yield _told("response.output_item.added", item)

    def _end(self, *, complete: bool = True) -> Iterator[Json]:
        item, self._open = self._open, None
        if item is None:
            return
        item.status = "completed" if complete else "incomplete"
        done = f"{_DELTAS[item.kind]}.done"
        if item.kind == "function_call":
            named = {"name": item.name, "arguments": item.text}
            yield {"type": done, **_place(item), **named}
        else:
            extra: Json = {"logprobs": []} if item.kind == "message" else {}
            yield {"type": done, **_place(item), "text": item.text, **extra}
            yield {"type": "response.content_part.done", **_place(item), "part": item.part()}
        yield _told("response.output_item.done", item)


def _place(item: _Item) -> Json:
    place: Json = {"item_id": item.id, "output_index": item.number}
    return place if item.kind == "function_call" else {**place, "content_index": 0}


def _told(event: str, item: _Item) -> Json:
    return {"type": event, "output_index": item.number, "item": item.shown()}
