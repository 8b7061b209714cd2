"""What a process holds that may grow: tasks, open files, threads."""

from __future__ import annotations

import asyncio
import threading

from services.http.open_files import open_now


def process_state() -> dict[str, int]:
    """Of this process, from within its event loop."""
    return {
        "tasks": len(asyncio.all_tasks()),
        "open_files": open_now(),
        "threads": threading.active_count(),
    }
