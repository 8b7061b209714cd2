"""What attacks are compared with: a process that computes and does nothing else."""

import io
import json
from pathlib import Path

import pytest

from benchmarks.attack import bombs
from benchmarks.attack.processes import computing
from benchmarks.common.processes import processor_s
from protocol.errors import InvalidRequest
from services.frontend.audio.wav import read_wav_header
from services.frontend.clips.limits import ClipLimits
from services.frontend.clips.reading import probe_clip
from tests.support.waiting import until


def test_a_process_computes_as_long_as_it_is_wanted() -> None:
    with computing(1.0) as pid:
        before = processor_s(pid)
        until(lambda: processor_s(pid) >= before + 0.1, "it computes", bound_s=60.0)
    assert not Path(f"/proc/{pid}").exists()


def test_what_is_sent_is_what_its_name_says() -> None:
    limits = ClipLimits()
    found = probe_clip(io.BytesIO(bombs.clip(300, 640, 480)), limits)
    assert (found.width, found.height, found.frames, found.rate) == (640, 480, 300, 100.0)
    with pytest.raises(InvalidRequest, match="incomplete"):
        read_wav_header(bombs.sound(1000))
    assert json.loads(bombs.blanks(50)) == {"prompt": " " * 50}
    assert json.loads(bombs.nested(3)) == {"messages": [[[]]]}
