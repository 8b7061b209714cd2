"""Real masters in the test's process that end and live again on their ports."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from protocol.registry import InstanceInfo, InstanceName, InstanceRole
from proxy.placement.master_client import MasterClient
from proxy.upstream.client import UpstreamClient
from services.http.server import bind, serve
from services.master.api.app import create_app
from services.master.api.service import MasterService
from services.master.config import MasterConfig


class Master:
    """One that can end and live again on its port, knowing no worker."""

    def __init__(self, config: MasterConfig | None = None) -> None:
        self._config = config or MasterConfig()
        self._port = 0
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.service = MasterService(self._config)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        listener = bind("127.0.0.1", self._port)
        self._port = listener.getsockname()[1]
        self.service, self._stop = MasterService(self._config), asyncio.Event()
        app = create_app(self.service, f"127.0.0.1:{self._port}")
        self._task = asyncio.create_task(serve(app, listener, "master", self._stop))
        listening = self._port
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", listening)
                writer.close()
                return
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        self._stop.set()
        if self._task is not None:
            await self._task
        self._task = None

    def tell_of(self, name: str, role: InstanceRole, url: str, generation: str = "1") -> None:
        self.service.register(InstanceInfo(name, role, url, "m", generation))

    def forget(self, name: str) -> None:
        self.service.deregister(InstanceName(name))


@contextlib.asynccontextmanager
async def running(
    count: int = 1,
    config: MasterConfig | None = None,
) -> AsyncIterator[tuple[list[Master], MasterClient, UpstreamClient]]:
    masters = [Master(config) for _ in range(count)]
    client = UpstreamClient(2.0, probe_timeout_s=10.0)
    try:
        async with asyncio.timeout(30):
            for master in masters:
                await master.start()
            yield masters, MasterClient([master.url for master in masters], client), client
    finally:
        await client.close()
        for master in masters:
            await master.stop()
