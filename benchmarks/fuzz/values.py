"""Values that no sender of good faith writes, put somewhere into a body; bodies as bytes; clips and
sounds of a few bytes, made here (a clip needs the extra video, PyAV)."""

from __future__ import annotations

import io
import json
import random
import wave
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np


@dataclass(frozen=True)
class Raw:
    """What stands in a JSON text as it is; in msgpack as a string of these bytes."""

    text: bytes


@dataclass(frozen=True)
class Form:
    """A body of multipart/form-data; a field of bytes is a file."""

    fields: dict[str, Any]


FORM_TYPE = "multipart/form-data; boundary=fuzz"
_INTEGERS = (
    0, -1, 1, 129, 2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 2**63, 2**64 - 1, 2**64,
    -(2**63) - 1, 10**30, -(10**30),
)  # fmt: skip
_NUMBERS = tuple(
    Raw(text)
    for text in (b"1e999", b"-1e999", b"NaN", b"Infinity", b"1e-320", b"-0.0", b"1.0", b"0.5",
                 b"1" * 5000, b"1E400", b"01", b"0x10", b"1" + b"0" * 308 + b".0")
)  # fmt: skip
_TEXTS: tuple[Any, ...] = (
    "", " ", "\0", "x" * 5000, "🙂" * 40, "\u202e", "²", "1e5", "-1", "NaN", "<|im_start|>",
    "{{ 1/0 }}", "../../etc/passwd", "file:///etc/passwd", "data:image/png;base64,AAAA",
    "data:,", "http://xn--/", f"http://{'a' * 300}/", "http://[::1/", "http://a@b@c/",
    "http://127.0.0.1:99999", "https://127.0.0.1:9/", "tcp://[", "tcp://*:*", "ipc:///tmp/x", "$.a",
    Raw(b'"\\ud800"'), Raw(b'"\\udc00\\ud800"'), Raw(b'"\xff\xfe"'), Raw(b'"\\x"'), Raw(b'"open'),
    Raw(b'"\x01"'),
)  # fmt: skip
_SHAPES: tuple[Any, ...] = (
    None, True, False, [], {}, [[]], [None], [[[[1]]]], {"": 0}, {"a": {"b": [1]}}, [0] * 300,
    ["x"] * 300, {str(number): number for number in range(300)},
    Raw(b"[" * 60 + b"]" * 60), Raw(b"[" * 3000 + b"]" * 3000), Raw(b"[" * 100_000),
    Raw(b'{"a":' * 2000 + b"1" + b"}" * 2000), Raw(b'{"a":1,"a":2}'), Raw(b""), Raw(b"}"),
    Raw(b"nul"),
)  # fmt: skip
_KINDS = (_INTEGERS, _NUMBERS, _TEXTS, _SHAPES)


def odd_value(chance: random.Random) -> Any:
    return chance.choice(chance.choice(_KINDS))


def mutated(body: Any, chance: random.Random) -> Any:
    """`body` with one thing changed: a value, a missing or an added field, two parts that have
    changed places, a list made longer."""
    body = _copied(body)
    places = list(_places(body))
    if not places or chance.random() < 0.03:
        return odd_value(chance)
    holder, key = chance.choice(places)
    kind = chance.random()
    if kind < 0.6:
        holder[key] = odd_value(chance)
    elif kind < 0.7:
        del holder[key]
    elif kind < 0.8:
        other, at = chance.choice(places)
        holder[key] = _copied(other[at])
    elif kind < 0.9 and isinstance(holder[key], list):
        holder[key] = holder[key] * chance.choice((2, 50, 700))
    elif isinstance(holder, dict):
        holder[chance.choice(("", "x", "\0", "__class__", "type", "id", f"{key} "))] = odd_value(
            chance
        )
    else:
        holder.insert(key, odd_value(chance))
    return body


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(part) for key, part in value.items()}
    return [_copied(part) for part in value] if isinstance(value, list) else value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """(holder, key) of everything in it."""
    if not isinstance(value, dict | list):
        return
    for key, part in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        yield from _places(part)


def as_json(value: Any) -> bytes:
    """Also of what no encoder writes."""
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, bytes):
        return json.dumps(value.decode("latin-1")).encode()
    if isinstance(value, dict):
        pairs = (json.dumps(key).encode() + b":" + as_json(part) for key, part in value.items())
        return b"{" + b",".join(pairs) + b"}"
    if isinstance(value, list):
        return b"[" + b",".join(map(as_json, value)) + b"]"
    return json.dumps(value, ensure_ascii=False).encode()


def as_form(fields: dict[str, Any]) -> bytes:
    """With `FORM_TYPE`."""
    parts = []
    for name, value in fields.items():
        file = b'; filename="a.wav"' if isinstance(value, bytes) else b""
        content = value if isinstance(value, bytes | str) else as_json(value)
        data = content if isinstance(content, bytes) else content.encode()
        head = b'--fuzz\r\nContent-Disposition: form-data; name="%b"' % name.encode()
        parts.append(head + file + b"\r\n\r\n" + data + b"\r\n")
    return b"".join(parts) + b"--fuzz--\r\n"


def as_msgpack(value: Any) -> bytes:
    return msgspec.msgpack.encode(_packable(value))


def _packable(value: Any) -> Any:
    if isinstance(value, Raw):
        return msgspec.Raw(value.text) if value.text else b""
    if isinstance(value, dict):
        return {key: _packable(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_packable(part) for part in value]
    huge = type(value) is int and not -(2**63) <= value < 2**64
    return float(value) if huge else value


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Bytes that are changed, cut, doubled or put in."""
    if not data:
        return b"\xff"
    at = chance.randrange(len(data))
    kind = chance.randrange(5)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
    if kind == 2:
        return data[:at] + chance.choice((b"\xff", b"\0", b"\xed\xa0\x80", b"\xc0\x80")) + data[at:]
    if kind == 3:
        return chance.choice((b"\xef\xbb\xbf", b"\xff\xfe", b" " * 3000)) + data
    return data + chance.choice((b"{}", b"\0", data, b"]"))


_SIZE = (64, 48)
_RATE = 4
_SOUND_RATE = 16_000


def clip(seed: int, frames: int = 8) -> bytes:
    """An MP4 of coloured tiles, four frames a second; another seed is another clip."""
    import av

    width, height = _SIZE
    colours = np.random.default_rng(seed).integers(0, 255, (frames, 4, 4, 3), dtype=np.uint8)
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream: Any = container.add_stream("mpeg4", rate=_RATE)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.thread_count = 1
        for tiles in colours:
            pixels = tiles.repeat(height // 4, axis=0).repeat(width // 4, axis=1)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return file.getvalue()


def tone(seconds: float = 0.2) -> bytes:
    """A WAV of 440 Hz."""
    times = np.arange(int(seconds * _SOUND_RATE)) / _SOUND_RATE
    samples = (8000 * np.sin(2 * np.pi * 440 * times)).astype("<i2")
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(_SOUND_RATE)
        sound.writeframes(samples.tobytes())
    return file.getvalue()
