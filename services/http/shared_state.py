"""What all connections of a server share."""

from __future__ import annotations

import asyncio

from uvicorn.server import ServerState

from services.http.beginnings import Beginnings
from services.http.intake import Intake


class SharedState(ServerState):
    """uvicorn's state of a server, which all its connections see. `keep_alive`: whether they may
    have another request after the one that is answered. `beginnings`: when new ones begin;
    `intake`: when more of large bodies is read that the application does not take itself."""

    def __init__(self) -> None:
        super().__init__()
        self.keep_alive = True
        self.beginnings = Beginnings(asyncio.get_running_loop().call_soon)
        self.intake = Intake()
