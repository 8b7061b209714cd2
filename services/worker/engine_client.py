"""What a worker asks its engine for: tokens, embeddings, figures, adapters."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Iterable

from protocol.errors import Unavailable, from_info
from protocol.request_record import RequestRecord
from protocol.types import EncodeOutput, EncodeRequest, GenerateRequest, RequestOutput
from services.engine import messages
from services.worker.engine_link import EngineLink

_QUERY_S = 10.0
_LOAD_S = 60.0  # an adapter of some hundred MB from a slow disk


class EngineClient(EngineLink):
    """An engine process as its worker uses it; see `EngineLink`."""

    async def generate(
        self, request: GenerateRequest, record: RequestRecord
    ) -> AsyncGenerator[list[RequestOutput], None]:
        """Run a request; yields what has arrived since the last time.

        Ends when every choice has finished. Closing the iterator earlier aborts the request. An
        error of the engine is raised. If the request is traced, `record` gets the stages inside
        the engine.
        """
        with self._requests.generating(request, record) as here:
            try:
                self._send(messages.Generate(request, record.trace is not None))
                while here.left:
                    yield await here.take()
            finally:
                if here.left:
                    self.abort([request.request_id])

    async def encode(self, request: EncodeRequest, record: RequestRecord) -> list[EncodeOutput]:
        """Encode items; one output each, in the order of `request.items`. `record` as of
        `generate`."""
        with self._requests.encoding(request, record) as here:
            try:
                self._send(messages.Encode(request, record.trace is not None))
                await here.finish()
            finally:
                if here.left:
                    self.abort([request.request_id])
        return [here.outputs[item.mm_hash] for item in request.items]

    def abort(self, request_ids: Iterable[str], index: int | None = None) -> None:
        """Stop requests, whose choices end with the reason "abort", or one choice of each, of which
        nothing more is said."""
        names = list(request_ids)
        # Whether or not an engine hears of it: the callers' wait ends below.
        with contextlib.suppress(Unavailable):
            self._send(messages.Abort(names, index))
        for name in names if index is None else ():
            self._requests.abort(name)

    def reset_caches(self, *, prefix: bool = False, encoder: bool = False) -> None:
        self._send(messages.ResetCaches(prefix, encoder))

    def set_log_level(self, level: str) -> None:
        """Of the engine's process; `NotServing` without one."""
        self._send(messages.SetLogLevel(level))

    def profile(self, path: str = "") -> None:
        """Begin a trace of the engine's steps, or end it and write it to `path`."""
        self._send(messages.Profile(path))

    async def statistics(
        self,
        *,
        check: bool = False,
        keys_since: int | None = None,
        awaited: bool = False,
        timeout_s: float = _QUERY_S,
    ) -> messages.Statistics:
        """A snapshot of the engine; see `messages.Query`. `Unavailable` if it does not answer."""
        answer = await self._asked(
            lambda number: messages.Query(number, check, keys_since, awaited), timeout_s
        )
        assert isinstance(answer, messages.Statistics)
        return answer

    async def load_adapter(self, name: str, folder: str) -> None:
        """Load a LoRA adapter; `InvalidRequest` says why it cannot be, `Unavailable` that it takes
        longer, in which case it may still be loaded. The engine makes no step meanwhile."""
        await self._change_adapters(lambda n: messages.LoadAdapter(n, name, folder))

    async def unload_adapter(self, name: str) -> None:
        """As `load_adapter`; `ModelNotFound` if there is none of this name."""
        await self._change_adapters(lambda n: messages.UnloadAdapter(n, name))

    async def _change_adapters(self, command: Callable[[int], messages.Command]) -> None:
        answer = await self._asked(command, _LOAD_S)
        assert isinstance(answer, messages.AdapterTable)
        if answer.error is not None:
            raise from_info(answer.error)
