"""Small fleets before a master, for tests of where requests go."""

from typing import Any

from protocol.kv_events import CacheEvent, EventBatch, EventSource
from protocol.placement import MediaNeed, Placement, ScheduleRequest
from protocol.registry import InstanceInfo, Load, Rates
from services.master.config import MasterConfig
from services.master.listener import MasterListener
from services.master.master import Master

SOURCES = [EventSource("tcp://127.0.0.1:1")]
RATES = Rates(
    encode_ms_per_token=1.0,
    prefill_ms_per_token=1.0,
    decode_base_ms=10.0,
    decode_ms_per_request=0.1,
    transfer_bytes_per_ms=1e6,
)
LOAD = Load(free_blocks=1000, total_blocks=1000, rates=RATES)
PROMPT = list(range(1000, 1010))


def master(*roles: str, listener: MasterListener | None = None, **config: Any) -> Master:
    """A fleet of one worker for each role, named e0, p1, d2, ... by role and place."""
    settings = MasterConfig(**{"seed": 1, "tie_ratio": 0.0, "lease": 1e6, **config})
    made = Master(settings, None, listener)
    for i, role in enumerate(roles):
        add(made, f"{role[0]}{i}", role)
    return made


def add(made: Master, name: str, role: Any, **fields: Any) -> None:
    values = {"model": "m", "events": SOURCES, "load": LOAD, **fields}
    made.register(InstanceInfo(name, role, f"http://{name}:1", **values), 0.0)


def hear(made: Master, name: str, *events: CacheEvent) -> None:
    made.apply(made.registry.instances[name].info, EventBatch(0.0, list(events)))


def asking(name: str, *, blocks: int = 10, **fields: Any) -> ScheduleRequest:
    return ScheduleRequest(
        name, **{"prompt_tokens": 160, "block_keys": PROMPT[:blocks], "max_tokens": 10, **fields}
    )


def place(made: Master, request: ScheduleRequest, now: float = 0.0) -> Placement:
    placed = made.schedule(request, now)
    assert isinstance(placed, Placement)
    return placed


def prefill_of(placement: Placement) -> str:
    return placement.prefill.instance_id if placement.prefill else placement.decode.instance_id


def sources(placement: Placement) -> list[tuple[str, str]]:
    return [(e.state, e.target.instance_id if e.target else "") for e in placement.encoders]


def picture(name: str, offset: int = 0, tokens: int = 32) -> MediaNeed:
    return MediaNeed(name, tokens, offset)
