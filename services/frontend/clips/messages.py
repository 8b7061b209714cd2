"""What a process that reads clips is asked, and what it answers: JSON, one to a packet."""

from __future__ import annotations

import msgspec

from protocol.errors import ErrorInfo
from services.frontend.clips.sampling import Clip

MESSAGE_BYTES = 1 << 16  # of a packet; frames and samples go by files


class Probe(msgspec.Struct, tag=True):
    """Answered by `Probed` or `Failed`."""


class Open(msgspec.Struct, tag=True):
    """Begin to decode; each `Frame` that follows is answered by one, or by `Failed`."""

    clip: Clip


class Frame(msgspec.Struct, tag=True):
    """Asks for the frame of this index, which is above all before; or says that it lies there."""

    index: int


class Close(msgspec.Struct, tag=True):
    """No further frame of this clip."""


class Listen(msgspec.Struct, tag=True):
    """Decode the sound of the file, which may last so long; answered by
    `SoundHeard` or `Failed`."""

    most_seconds: float


class SoundHeard(msgspec.Struct, tag=True):
    """Samples lie there as float32, in mono, so many of them at so many a second."""

    rate: int
    samples: int


class Probed(msgspec.Struct, tag=True):
    clip: Clip


class Failed(msgspec.Struct, tag=True):
    """Why there is no such answer; with `last`, nor to anything else."""

    error: ErrorInfo
    last: bool = False


# Told apart by their tags.
Asked = Probe | Open | Frame | Close | Listen
Answer = Probed | Frame | SoundHeard | Failed
