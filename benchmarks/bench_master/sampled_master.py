"""A master that counts where its processor time goes: `sampled_master FILE [flags of a master]`.

SIGUSR1 begins the counting. A timer of the process's own processor time interrupts it then, and the
innermost part of the master on the stack is charged. FILE gets the counts, as JSON, at the end.
"""

import json
import signal
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

from services.master.__main__ import main

_EVERY_S = 0.002  # the kernel may round it up to a tick
_MASTER = "services/master/"
REST = "http"
"""What belongs to no part: the event loop, HTTP, JSON and msgpack of calls."""


class Sampler:
    """Counts by part: the folder below `services/master` that is at work."""

    def __init__(self) -> None:
        self.counts = Counter[str]()
        signal.signal(signal.SIGUSR1, self._begin)
        signal.signal(signal.SIGPROF, self._sample)

    def _begin(self, number: int, frame: FrameType | None) -> None:
        signal.setitimer(signal.ITIMER_PROF, _EVERY_S, _EVERY_S)

    def _sample(self, number: int, frame: FrameType | None) -> None:
        while frame is not None:
            _, found, rest = frame.f_code.co_filename.partition(_MASTER)
            part, inside, _ = rest.partition("/")
            if found and inside and part != "api":
                self.counts[part] += 1
                return
            frame = frame.f_back
        self.counts[REST] += 1


def run(file: Path, flags: list[str]) -> int:
    """The master's exit status."""
    sampler = Sampler()
    try:
        return main(flags)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        file.write_text(json.dumps(sampler.counts))


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1]), sys.argv[2:]))
