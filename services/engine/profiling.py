"""What an engine's steps spend their time on, by PyTorch's profiler, as a trace for a browser."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch

logger = logging.getLogger("engine")


class Profiler:
    """One trace at a time. It is begun and ended by the thread that steps."""

    def __init__(self) -> None:
        self._running: Any = None

    def start(self) -> None:
        """Nothing happens if a trace is being taken."""
        if self._running is not None:
            return
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._running = torch.profiler.profile(activities=activities)
        self._running.start()
        logger.info("the profiler has started")

    def stop(self, path: str) -> None:
        """Write the trace to `path`, which has it whole or not at all."""
        if self._running is None:
            return
        taken, self._running = self._running, None
        part = Path(f"{path}.part")
        try:
            taken.stop()
            taken.export_chrome_trace(str(part))
            part.rename(path)
        except (OSError, RuntimeError) as error:
            part.unlink(missing_ok=True)
            logger.error("the trace %s cannot be written: %s", path, error)
        else:
            logger.info("the profiler has stopped: %s", path)
