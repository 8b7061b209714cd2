"""`/start_profile` and `/stop_profile` of a worker, as vLLM has them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from protocol.errors import InvalidRequest, Unavailable
from services.worker.worker import Worker

LONGEST_S = 60.0  # a trace grows in memory until it is stopped
_AGAIN_S = 1.0
_FLAG = "--profile-folder"


def profiling(worker: Worker) -> APIRouter:
    """No routes unless `--profile-folder` says where traces go."""
    routes, folder = APIRouter(), worker.config.profile_folder
    if not folder:
        return routes
    trace = Trace(worker, Path(folder))

    @routes.post("/start_profile")
    async def start_profile() -> JSONResponse:
        """Trace the engine's steps with PyTorch's profiler, for a minute at most."""
        return JSONResponse({"trace": str(trace.start())})

    @routes.post("/stop_profile")
    async def stop_profile() -> JSONResponse:
        """End the trace; the engine writes it to the file that the answer names."""
        return JSONResponse({"trace": str(trace.stop())})

    return routes


class Trace:
    """The trace under way, and the number of those before it."""

    def __init__(self, worker: Worker, folder: Path) -> None:
        self._worker = worker
        self._folder = folder
        self._count = 0
        self._ending: asyncio.TimerHandle | None = None

    @property
    def _path(self) -> Path:
        name = f"{self._worker.role.name}-{self._worker.instance_id[:8]}-{self._count}.json"
        return self._folder / name

    def start(self) -> Path:
        if self._ending is not None:
            raise InvalidRequest("a trace is being taken: /stop_profile ends it")
        if not (self._folder.is_dir() and os.access(self._folder, os.W_OK)):
            raise InvalidRequest(f"{_FLAG}: {self._folder} is no folder that can be written to")
        self._count += 1
        self._worker.engine.profile()
        self._end_after(LONGEST_S)
        return self._path

    def stop(self) -> Path:
        if self._ending is None:
            raise InvalidRequest("no trace is being taken: /start_profile begins one")
        # First: while the engine stalls it takes no command, and the trace goes on.
        self._worker.engine.profile(str(self._path))
        self._ending.cancel()
        self._ending = None
        return self._path

    def _end_after(self, seconds: float) -> None:
        self._ending = asyncio.get_running_loop().call_later(seconds, self._end)

    def _end(self) -> None:
        """Its time is over. Tried until the engine takes the command."""
        try:
            self.stop()
        except Unavailable:
            self._end_after(_AGAIN_S)
