"""A prefill and a decode engine in the test process, and requests that go from one to the other."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from connectors.config import KVConfig
from protocol.types import GenerateRequest, RequestOutput
from services.engine.engine import Engine
from tests.support.conversations import LONG, asking
from tests.support.engines import DEADLINE_S, engine, request_of
from tests.support.reference import reference_generate

TOKENS = 8


class Pair:
    """A prefill and a decode engine, stepped by hand. `shared`: options of both, `options` of the
    prefill engine."""

    def __init__(
        self, model: Path, folder: Path, *, transport: Any = "shm", lease_s: float = 30.0,
        shared: dict[str, Any] | None = None, **options: Any,
    ) -> None:  # fmt: skip
        kv = KVConfig(transport=transport, path=str(folder), lease_s=lease_s, timeout_s=5.0)
        common: dict[str, Any] = {"parts": ("language",), "kv": kv, "num_blocks": 64}
        common |= shared or {}
        self.model = model
        self.prefill = engine(model, **{**common, "max_num_batched_tokens": 16, **options})
        self.decode = engine(model, **common)
        self.outputs: dict[str, list[RequestOutput]] = {"prefill": [], "decode": []}

    def step(self, *names: str) -> None:
        for name in names or ("prefill", "decode"):
            worker: Engine = getattr(self, name)
            self.outputs[name] += worker.step()[0]

    def until(self, done: Callable[[], bool], *names: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not done():
            assert time.monotonic() < deadline
            self.step(*names)
            time.sleep(0.0005)

    def tokens(self, name: str, index: int = 0) -> list[int]:
        return [t for o in self.outputs[name] if o.index == index for t in o.token_ids]

    def finished(self, name: str) -> int:
        return sum(o.finish_reason is not None for o in self.outputs[name])

    def request(self, text: str = LONG, **sampling: Any) -> GenerateRequest:
        params = {"max_tokens": TOKENS, "ignore_eos": True, **sampling}
        return request_of(self.model, asking(text), "r", **params)[0]

    def to_prefill(self, request: GenerateRequest) -> None:
        assert self.prefill.generate is not None
        asked = msgspec.structs.replace(request, kv_transfer_params={"do_remote_decode": True})
        assert self.prefill.generate.add(asked) == []

    def to_decode(self, request: GenerateRequest, params: dict[str, Any] | None = None) -> None:
        """With `params`, or placed ahead of prefill."""
        assert self.decode.generate is not None
        ahead = {**self.prefill.ready().kv_endpoint, "remote_request_id": "r"}
        asked = msgspec.structs.replace(request, kv_transfer_params=params or ahead)
        assert self.decode.generate.add(asked) == []

    @property
    def idle(self) -> bool:
        return not any(
            worker.generate is None or len(worker.generate) or worker.generate.transfers.active
            for worker in (self.prefill, self.decode)
        )

    def settle(self) -> None:
        """Nothing is held by anyone any more."""
        self.until(lambda: self.idle)
        for worker in (self.prefill, self.decode):
            assert worker.check_integrity() == []
            assert worker.gauges()["kv_cache_usage_perc"] == 0
        self.decode.close()
        self.prefill.close()


def expected(pair: Pair, text: str = LONG) -> list[int]:
    return reference_generate(pair.model, asking(text), TOKENS, ignore_eos=True)
