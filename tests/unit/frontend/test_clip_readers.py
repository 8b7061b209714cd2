"""Clips are read in processes that can be ended, and that end by themselves."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.errors import InternalError, InvalidRequest, TriptychError, Unavailable
from services.frontend.clips.limits import ClipLimits
from services.frontend.clips.readers import ClipReaders
from services.frontend.clips.sampling import Clip
from tests.support.clips import DrawnClip, clip
from tests.support.waiting import until

Made = Callable[..., ClipReaders]
DRAWN = clip(1)
PARAM = "messages[0].content[0].video_url.url"


@pytest.fixture(scope="module")
def large() -> DrawnClip:
    return clip(2, frames=3, rate=30, size=(1920, 1080))


@pytest.fixture
def readers() -> Iterator[Made]:
    made = []

    def make(most: int = 1, **limits: Any) -> ClipReaders:
        made.append(ClipReaders(ClipLimits(**limits), most))
        return made[-1]

    yield make
    for one in made:
        one.close()


def children() -> set[int]:
    """Processes of this one that read clips."""
    tasks = Path("/proc/self/task").glob("*/children")
    found = {int(pid) for task in tasks for pid in task.read_text().split()}
    return {pid for pid in found if b"clips.child" in Path(f"/proc/{pid}/cmdline").read_bytes()}


def reads(made: ClipReaders) -> None:
    found = made.probe(DRAWN.data)
    read = list(made.frames(DRAWN.data, found, [0, 5, 5, 11]))
    assert found == Clip(64, 48, 12, 4.0)
    assert np.array_equal(np.stack(read), DRAWN.decoded[0][[0, 5, 5, 11]])


def test_one_process_reads_one_clip_after_another(readers: Made) -> None:
    before, made = children(), readers()
    for _ in range(3):
        reads(made)
        with pytest.raises(InvalidRequest, match="broken or incomplete") as caught:
            made.probe(b"\0\0\0\x18ftypmp42" + b"\0" * 64, PARAM)
        assert (caught.value.param, caught.value.code) == (PARAM, "invalid_video")
        with pytest.raises(InvalidRequest, match="of 60 frames 12 can be decoded"):
            list(made.frames(DRAWN.data, Clip(64, 48, 60, 4.0), [0, 59]))
        (child,) = children() - before
    made.close()
    assert child not in children()
    with pytest.raises(Unavailable, match="ends"):
        made.probe(DRAWN.data)


def test_reading_has_a_time(readers: Made, large: DrawnClip) -> None:
    """As long as it takes to give one frame again and again: gigabytes. A small clip is read in
    that time also by a busy machine."""
    made = readers(read_s=2.0)
    frames = made.frames(large.data, Clip(1920, 1080, 3, 30.0), [0] * 8000)
    with pytest.raises(InvalidRequest, match=r"within 2 s \(--video-timeout\)"):
        for _ in frames:
            pass
    reads(made)


@pytest.mark.parametrize("mib", [1, 4])
def test_reading_has_a_memory(mib: int, readers: Made, large: DrawnClip) -> None:
    """Also where FFmpeg says that the clip has no size, as with the least."""
    made = readers(memory_bytes=mib << 20)
    for _ in range(2):
        with pytest.raises(InvalidRequest, match=rf"more than {mib} MiB \(--video-memory-bytes"):
            made.probe(large.data, PARAM)
        reads(made)


def test_frames_have_a_memory(readers: Made, large: DrawnClip) -> None:
    made = readers(memory_bytes=12 << 20)
    found = Clip(1920, 1080, 3, 30.0)
    with pytest.raises(InvalidRequest, match=r"more than 12 MiB \(--video-memory-bytes\)"):
        list(made.frames(large.data, found, [0, 1]))
    assert len(list(readers(memory_bytes=64 << 20).frames(large.data, found, [0, 1]))) == 2


def test_a_broken_clip_is_not_said_to_take_memory(readers: Made, large: DrawnClip) -> None:
    made = readers(memory_bytes=64 << 20)
    made.probe(large.data)
    with pytest.raises(InvalidRequest, match=r"^the clip is broken or incomplete"):
        made.probe(b"\0\0\0\x18ftypmp42" + b"\0" * 64)


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSEGV, signal.SIGSTOP])
def test_a_process_that_ends_or_stops(sent: signal.Signals, readers: Made) -> None:
    before, made = children(), readers(read_s=20.0)
    found = made.probe(DRAWN.data)
    frames = made.frames(DRAWN.data, found, range(12))
    next(frames)
    (child,) = children() - before
    (reader,) = made._busy
    reader._until = time.monotonic() + 1.0
    os.kill(child, sent)
    with pytest.raises(TriptychError, match=r"was ended|with signal 11|within 20 s"):
        list(frames)
    reads(made)
    assert child not in children()


def test_a_process_that_does_not_start(readers: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    made = readers()
    with monkeypatch.context() as other:
        other.setattr(sys, "executable", "/bin/false")
        with pytest.raises(InternalError, match="ended with status 1"):
            made.probe(DRAWN.data)
        other.setattr(sys, "executable", "/nowhere")
        with pytest.raises(Unavailable, match="can be started"):
            made.probe(DRAWN.data)
    reads(made)


def test_others_wait_for_their_turn_and_not_for_ever(readers: Made) -> None:
    made = readers()
    frames = made.frames(DRAWN.data, Clip(64, 48, 12, 4.0), range(12))
    next(frames)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(reads, made)
        assert len(list(frames)) == 11
        waiting.result(10)
    hurried = readers(read_s=2.0)  # time enough for the first frame on a busy machine
    frames = hurried.frames(DRAWN.data, Clip(64, 48, 12, 4.0), range(12))
    next(frames)
    with pytest.raises(Unavailable, match="--video-readers"):
        hurried.probe(DRAWN.data)
    with pytest.raises(InvalidRequest, match="--video-timeout"):
        list(frames)


def test_frames_that_are_not_taken_hold_no_process(readers: Made) -> None:
    made = readers()
    for _ in range(2):
        frames = made.frames(DRAWN.data, Clip(64, 48, 12, 4.0), range(12))
        next(frames)
        frames.close()  # type: ignore[attr-defined]
    reads(made)


def test_other_systems_take_no_clips(readers: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(InvalidRequest, match="operating system") as caught:
        readers().probe(DRAWN.data, PARAM)
    assert (caught.value.param, caught.value.code) == (PARAM, "unsupported_media")


def test_a_process_knows_no_secret(readers: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    before, made = children(), readers()
    reads(made)
    (child,) = children() - before
    assert b"HF_TOKEN" not in Path(f"/proc/{child}/environ").read_bytes()


ENDS = """
import os, sys
from services.frontend.clips.limits import ClipLimits
from services.frontend.clips.readers import ClipReaders
from services.frontend.clips.sampling import Clip
made = ClipReaders(ClipLimits(), 1)
frames = made.frames(open(sys.argv[1], "rb").read(), Clip(64, 48, 12, 4.0), range(12))
next(frames)
print(*[reader._process.pid for reader in made._busy], flush=True)
os._exit(1)
"""


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    file = tmp_path / "clip.mp4"
    file.write_bytes(DRAWN.data)
    command = [sys.executable, "-c", ENDS, str(file)]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=60, check=False)
    child = Path(f"/proc/{int(done.stdout)}")
    until(lambda: not child.exists() or "State:\tZ" in (child / "status").read_text())
