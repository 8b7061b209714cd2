"""The parent's side of one `clips.child`: a process that reads one clip at a time."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from protocol.errors import InternalError, TriptychError, Unavailable, UpstreamError, from_info
from services.frontend.clips.limits import ClipLimits, invalid_clip
from services.frontend.clips.messages import (
    MESSAGE_BYTES,
    Answer,
    Asked,
    Close,
    Failed,
    Frame,
    Listen,
    Open,
    Probe,
    Probed,
    SoundHeard,
)
from services.frontend.clips.sampling import Clip

_START_S = 20.0  # beyond the time for a clip: the child has to start and load FFmpeg
_PASSED_ON = ("PATH", "PYTHON", "LD_LIBRARY_PATH", "LC_", "LANG", "VIRTUAL_ENV")


class ClipReader:
    """Not for two threads at once. Any error ends the process, and `alive` is False."""

    def __init__(self, limits: ClipLimits) -> None:
        """`Unavailable` if there can be no further process."""
        self._limits = limits
        self._decoder: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)
        self._closed = False
        self._until = 0.0
        self._said: TriptychError | None = None  # by the child, which is ready for the next clip
        with contextlib.ExitStack() as made:
            # Packets keep their bounds, and an end that is closed shows at once.
            self._work, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            made.callback(self._work.close)
            try:
                self._file = os.memfd_create("clip")
                made.callback(os.close, self._file)
                self._frame = os.memfd_create("frame")
                made.callback(os.close, self._frame)
                self._process = self._started(theirs)
            except OSError as error:
                raise Unavailable(f"no process to read a clip can be started: {error}") from None
            finally:
                # The child has its own: with this one open, the child's end would not show.
                theirs.close()
            self._made = made.pop_all()

    def _started(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        passed = (theirs.fileno(), self._file, self._frame)
        # Keys and tokens of this process are not for a decoder of clients' files.
        env = {name: v for name, v in os.environ.items() if name.startswith(_PASSED_ON)}
        command = [sys.executable, "-m", "services.frontend.clips.child", *map(str, passed)]
        return subprocess.Popen(
            [*command, msgspec.json.encode(self._limits).decode()],
            stdin=subprocess.DEVNULL,
            pass_fds=passed,
            # numpy would reserve address space for a thread on each core.
            env={**env, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    @property
    def alive(self) -> bool:
        return not self._closed and self._process.poll() is None

    def close(self) -> None:
        """Its process is ended, from any thread, also while another one waits for it."""
        self._closed = True
        self._process.kill()

    def release(self) -> None:
        """After `close`, when no thread uses it any more."""
        self._process.kill()
        self._process.wait()
        self._made.close()

    def probe(self, data: bytes) -> Clip:
        """What `frames` will find. `InvalidRequest` if this is no clip, a broken one or one beyond
        the limits."""
        with self._holding(data):
            self._send(Probe())
            answer = self._answer()
            if not isinstance(answer, Probed):
                raise self._confused(answer)
            return answer.clip

    def frames(self, data: bytes, clip: Clip, wanted: Sequence[int]) -> Iterator[NDArray[np.uint8]]:
        """uint8[height, width, 3] of each index of `wanted`, which ascends; none is written over.
        `InvalidRequest` if the clip has fewer."""
        with self._holding(data):
            self._send(Open(clip))
            self._send(Frame(wanted[0]))
            for index, following in zip(wanted, [*wanted[1:], None], strict=True):
                answer = self._answer()
                if not isinstance(answer, Frame) or answer.index != index:
                    raise self._confused(answer)
                pixels = self._pixels(clip)
                # Asked for before the frame is used: the child decodes meanwhile.
                self._send(Close() if following is None else Frame(following))
                yield pixels

    def sound(self, data: bytes, most_seconds: float) -> tuple[int, NDArray[np.float32]]:
        """(samples a second, float32[n] in mono). `InvalidRequest` if this is no audio, or broken,
        or longer."""
        with self._holding(data):
            self._send(Listen(most_seconds))
            answer = self._answer()
            if not isinstance(answer, SoundHeard):
                raise self._confused(answer)
            samples = np.empty(answer.samples, np.float32)
            if os.preadv(self._frame, [samples.data], 0) != samples.nbytes:
                raise UpstreamError("the process that reads audio has lost samples")
            return answer.rate, samples

    @contextlib.contextmanager
    def _holding(self, data: bytes) -> Iterator[None]:
        """The clip is in the child's file meanwhile. What ends this early ends the child, but for
        an error that the child has told and goes on after."""
        self._until = time.monotonic() + self._limits.read_s + _START_S
        try:
            _fill(self._file, data)
            yield
        except BaseException as error:
            if error is not self._said:
                self.close()
            raise
        finally:
            # What one client sent must not stay readable to the decoder of the next.
            _fill(self._file, b"")
            _fill(self._frame, b"")

    def _pixels(self, clip: Clip) -> NDArray[np.uint8]:
        pixels = np.empty((clip.height, clip.width, 3), np.uint8)
        if os.preadv(self._frame, [pixels.data], 0) != pixels.nbytes:
            raise UpstreamError("the process that reads clips has lost a frame")
        return pixels

    def _send(self, asked: Asked) -> None:
        with contextlib.suppress(OSError):  # what it has to say, or how it ended, is read next
            self._work.send(msgspec.json.encode(asked))

    def _answer(self) -> Answer:
        # Never 0: the socket would not wait, and raise another error than `TimeoutError`.
        self._work.settimeout(max(self._until - time.monotonic(), 0.001))
        try:
            data = self._work.recv(MESSAGE_BYTES)
        except TimeoutError:
            raise self._too_slow() from None
        except OSError:
            data = b""
        if not data:
            raise self._ended()
        answer = self._decoder.decode(data)
        if isinstance(answer, Failed):
            error = from_info(answer.error)
            self._said = None if answer.last else error
            raise error
        return answer

    def _too_slow(self) -> Exception:
        return invalid_clip(
            f"the file cannot be read within {self._limits.read_s:g} s (--video-timeout)"
        )

    def _ended(self) -> Exception:
        """Why it says no more."""
        # The socket closes a moment before the process can be waited for.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        status = self._process.returncode
        if status == -signal.SIGALRM:
            return self._too_slow()
        # By `close`, or by the kernel for want of memory: another try may do better.
        if status == -signal.SIGKILL:
            return Unavailable("the process that read the clip was ended")
        if status is None or status >= 0:
            return InternalError(f"the process that reads clips has ended with status {status}")
        return invalid_clip(f"the file cannot be read: FFmpeg has failed with signal {-status}")

    def _confused(self, answer: Answer) -> Exception:
        return UpstreamError(f"the process that reads clips has answered {type(answer).__name__}")


def _fill(file: int, data: bytes) -> None:
    os.ftruncate(file, 0)
    view, place = memoryview(data), 0
    while place < len(view):
        place += os.pwrite(file, view[place:], place)
