"""A process in which FFmpeg reads clips and compressed audio, one after another: what it was given
is the file in memory, and what it finds goes back by a socket, frames and samples by another file
in memory.

It may use so much memory and no more, knows no secret of its parent, and ends by itself if it takes
too long or its parent has gone.

Source of the limits: setrlimit(2), setitimer(2), proc_pid_status(5).
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np

from protocol.errors import TriptychError, error_info
from services.frontend.audio.compressed import read_sound
from services.frontend.clips.limits import ClipLimits, invalid_clip
from services.frontend.clips.messages import (
    MESSAGE_BYTES,
    Answer,
    Asked,
    Failed,
    Frame,
    Listen,
    Open,
    Probe,
    Probed,
    SoundHeard,
)
from services.frontend.clips.reading import probe_clip, read_frames
from services.frontend.clips.sampling import Clip

_NICE = 10  # as threads that prepare pictures
_FILES = 16  # open files: a decoder needs none
_SPARE_BYTES = 16 << 20  # what a decoder may ask for at once, at least


class Room:
    """From now on this process has `memory_bytes` more than it has already."""

    def __init__(self, memory_bytes: int) -> None:
        self._most = _address_space("VmSize") + memory_bytes
        self._spare = max(_SPARE_BYTES, min(memory_bytes // 4, 4 * _SPARE_BYTES))
        # The address space, not what is resident: malloc fails instead of the kernel killing
        # others.
        # The hard limit too: the process itself cannot raise that again.
        resource.setrlimit(resource.RLIMIT_AS, (self._most,) * 2)

    def is_used_up(self) -> bool:
        """Whether nearly all of that was in use at some time: FFmpeg does not say of every failure
        that it had no memory."""
        return _address_space("VmPeak") + self._spare > self._most


def _address_space(name: str) -> int:
    """Bytes, by a name of proc_pid_status(5)."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return int(status.split(f"{name}:")[1].split()[0]) << 10


class Child:
    """`work`: the socket of the parent. `file` and `frame`: file descriptors of the clip, and of
    uint8[height, width, 3] that are written over by each frame. `room`: its memory."""

    def __init__(
        self, work: socket.socket, file: int, frame: int, limits: ClipLimits, room: Room
    ) -> None:
        self._work, self._file, self._frame, self._limits = work, file, frame, limits
        self._room = room
        self._decoder = msgspec.json.Decoder(Asked)

    def run(self) -> None:
        """Until the parent has gone, or the memory was too little."""
        while (asked := self._next()) is not None:
            try:
                self._do(asked)
            except MemoryError:
                self._end("")
                break  # what is left of the memory may be in pieces
            except TriptychError as error:
                if self._room.is_used_up():
                    self._end(f": {error.message}")
                    break
                self._send(Failed(error_info(error)))
            finally:
                # Else the time limit of this clip would end the process while it is idle.
                signal.setitimer(signal.ITIMER_REAL, 0)

    def _end(self, reason: str) -> None:
        size = f"{self._limits.memory_bytes / 2**20:.3g} MiB (--video-memory-bytes)"
        error = invalid_clip(f"the file takes more than {size}{reason}")
        self._send(Failed(error_info(error), last=True))

    def _next(self) -> Asked | None:
        data = self._work.recv(MESSAGE_BYTES)
        return self._decoder.decode(data) if data else None

    def _send(self, answer: Answer) -> None:
        self._work.send(msgspec.json.encode(answer))

    def _do(self, asked: Asked) -> None:
        # Nothing that FFmpeg does can put this off: the signal ends the process.
        signal.setitimer(signal.ITIMER_REAL, self._limits.read_s)
        # A copy, which is closed here: the descriptor itself is for the next clip too.
        with os.fdopen(os.dup(self._file), "rb") as file:
            if isinstance(asked, Probe):
                self._send(Probed(probe_clip(file, self._limits)))
            elif isinstance(asked, Open):
                self._frames(file, asked.clip)
            elif isinstance(asked, Listen):
                self._sound(file, asked.most_seconds)

    def _sound(self, file: BinaryIO, most_seconds: float) -> None:
        rate, samples = read_sound(file, most_seconds)
        os.pwrite(self._frame, samples.data, 0)
        self._send(SoundHeard(rate, len(samples)))

    def _frames(self, file: BinaryIO, clip: Clip) -> None:
        indices: list[int] = []

        def asked() -> Iterator[int]:
            while isinstance(message := self._next(), Frame):
                indices.append(message.index)
                yield message.index

        for pixels in read_frames(file, clip, asked(), self._limits):
            # A frame that was turned is a view, whose rows do not lie one after the other.
            os.pwrite(self._frame, np.ascontiguousarray(pixels).data, 0)
            self._send(Frame(indices.pop()))


def main() -> None:
    """Arguments: numbers of the socket, of the clip's file and of the frame's, and the limits."""
    work, file, frame = (int(number) for number in sys.argv[1:4])
    limits = msgspec.json.decode(sys.argv[4], type=ClipLimits)
    for meant in (signal.SIGINT, signal.SIGTERM):  # these are for the parent
        signal.signal(meant, signal.SIG_IGN)
    # Decoding must not slow the streams of the process that asked.
    os.nice(_NICE)
    # A core would hold a client's clip.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (_FILES, _FILES))
    room = Room(limits.memory_bytes)
    Child(socket.socket(fileno=work), file, frame, limits, room).run()


if __name__ == "__main__":
    main()
