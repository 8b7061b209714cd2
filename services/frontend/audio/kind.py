"""Audio as a kind of media."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from services.frontend.audio.formats import refuse_other_audio
from services.frontend.audio.reading import QUALITY, AudioReader
from services.frontend.clips.readers import BUSY, BoundedThreads, ClipReaders
from services.frontend.config import FrontendConfig
from services.frontend.families import Audio, Extent
from services.frontend.media.kinds import Kind, Wanted, naming

_WAITING = 64  # audio items that wait to be measured
_DECODING = f"mean of channels, {QUALITY}"  # what samples depend on besides the bytes


T = TypeVar("T")


class Sounds(Kind):
    noun = "audio item"

    def __init__(self, config: FrontendConfig, audio: Audio) -> None:
        self._audio = audio
        media = config.media
        self._readers = (
            # The processes that read clips read compressed audio too.
            ClipReaders(media.clips, media.video_readers) if config.allow_clips else None
        )
        self._reader = AudioReader(audio, self._readers)
        self._threads = BoundedThreads(media.video_readers, _WAITING, media.video_timeout_s, BUSY)

    def wanted(self, kwargs: Mapping[str, Any], io: Mapping[str, Any]) -> Wanted:
        return Wanted()

    def refuse_other_formats(self, start: bytes, param: str) -> None:
        refuse_other_audio(start, param)

    def measure(self, data: bytes, wanted: Wanted, param: str) -> Extent:
        # Compressed audio is decoded for its length: no header tells it reliably.
        return naming(param, self._audio.measure, self._reader.count(data, param))

    async def run(self, work: Callable[[], T], size: int) -> T:
        """Never in the threads of others: FFmpeg may take as long as `--video-timeout`."""
        return await self._threads.run(work)

    async def close(self) -> None:
        # First: it ends the waits of the threads, which the interpreter joins when it exits.
        if self._readers is not None:
            self._readers.close()
        self._threads.close()

    def processor(self, wanted: Wanted) -> dict[str, Any]:
        return {**self._audio.processor, "decoding": _DECODING}

    def extent_of(self, metadata: Mapping[str, Any]) -> Extent:
        return self._audio.extent_of(metadata)
