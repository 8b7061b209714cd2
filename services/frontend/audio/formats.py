"""Which format of audio a file is, by its first bytes, and which formats are read."""

from __future__ import annotations

from types import MappingProxyType

from protocol.errors import InvalidRequest

WAV = "WAV"
_NAMES = MappingProxyType(
    {
        "wav": "WAV",
        "wave": "WAV",
        "mp3": "MP3",
        "mpeg": "MP3",
        "flac": "FLAC",
        "ogg": "Ogg",
        "opus": "Ogg",
        "m4a": "MP4",
        "mp4": "MP4",
        "webm": "WebM",
    }
)
_STARTS = MappingProxyType(
    {b"ID3": "MP3", b"fLaC": "FLAC", b"OggS": "Ogg", b"\x1a\x45\xdf\xa3": "WebM"}
)


def format_of(start: bytes) -> str:
    """The format of a file that begins so, "" if it is none that is known; 16 bytes do."""
    if start[:4] == b"RIFF" and start[8:12] == b"WAVE":
        return "WAV"
    # Any brand: M4A, MP4 and MOV are read alike.
    if start[4:8] == b"ftyp":
        return "MP4"
    if len(start) > 1 and start[0] == 0xFF and start[1] & 0xE6 == 0xE2:  # sync word, layer 3
        return "MP3"
    return next((name for begin, name in _STARTS.items() if start.startswith(begin)), "")


def check_said(said: str, start: bytes, param: str) -> None:
    """`InvalidRequest` (`param`) if a client's name of a format is unknown, or is not that of a
    file that begins so. Bytes that are no known audio are refused when they are read."""
    name = _NAMES.get(said.lower())
    if name is None:
        raise invalid_audio(f"format must be one of {', '.join(_NAMES)}, not '{said[:32]}'", param)
    found = format_of(start)
    if found and found != name:
        raise invalid_audio(f"format says '{said}', but the data are {found}", param)


def refuse_other_audio(start: bytes, param: str | None = None) -> None:
    """`InvalidRequest` if a file that begins so is not read here; 16 bytes do."""
    if not format_of(start):
        known = ", ".join(sorted(set(_NAMES.values())))
        raise invalid_audio(f"this is no audio of a known format ({known})", param)


def invalid_audio(message: str, param: str | None = None) -> InvalidRequest:
    return InvalidRequest(message, param=param, code="invalid_audio")
