"""The whole master against sets of sets, under random events in both encodings, deaths and
restarts."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from protocol.kv_events import (
    AllBlocksCleared,
    AllEmbeddingsCleared,
    BlockRemoved,
    BlockStored,
    CacheEvent,
    EmbeddingRemoved,
    EmbeddingStored,
    Encoding,
    EventSource,
    decode_event_batch,
    encode_batch,
)
from protocol.placement import Placement, ScheduleRequest
from protocol.registry import Heartbeat, InstanceInfo, InstanceName
from services.master.config import MasterConfig
from services.master.index.holder_sets import slots_of
from services.master.master import Master

NAMES = [f"w{i}" for i in range(5)]
LEASE_S = 10.0
keys = st.lists(st.integers(0, 9), max_size=6)
pictures = st.sampled_from(["x", "y", "z"])
names = st.sampled_from(NAMES)


class MasterModel(RuleBasedStateMachine):
    """`blocks` and `media`: what each live worker holds; `beats`: when it was last heard of."""

    def __init__(self) -> None:
        super().__init__()
        self.master = Master(MasterConfig(seed=1, lease=LEASE_S))
        self.now = 0.0
        self.lives: dict[str, str] = {}
        self.beats: dict[str, float] = {}
        self.blocks: dict[str, set[int]] = {}
        self.media: dict[str, set[str]] = {}

    def info(self, name: str, life: str) -> InstanceInfo:
        source = EventSource("tcp://127.0.0.1:1")
        return InstanceInfo(name, "decode", f"http://{name}", "m", life, events=[source])

    def forget(self, name: str) -> None:
        for table in (self.lives, self.beats, self.blocks, self.media):
            table.pop(name, None)

    @rule(name=names, life=st.sampled_from("ab"))
    def register(self, name: str, life: str) -> None:
        self.master.register(self.info(name, life), self.now)
        if self.lives.get(name) != life:
            self.blocks[name], self.media[name] = set(), set()
        self.lives[name], self.beats[name] = life, self.now

    @rule(name=names)
    def deregister(self, name: str) -> None:
        self.master.deregister(InstanceName(name), self.now)
        self.forget(name)

    @rule(name=names)
    def heartbeat(self, name: str) -> None:
        beat = Heartbeat(name, self.lives.get(name, "a"))
        assert self.master.heartbeat(beat, self.now).known == (name in self.lives)
        if name in self.lives:
            self.beats[name] = self.now

    @rule(seconds=st.floats(0.1, 6.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.master.expire(self.now)
        for name, beat in list(self.beats.items()):
            if self.now * 1e3 >= beat * 1e3 + LEASE_S * 1e3:
                self.forget(name)

    def hear(self, name: str, event: CacheEvent, encoding: Any, life: str) -> bool:
        """Whether the master takes the event: from another life it must not."""
        payload = encode_batch(self.now, [event], encoding=encoding)
        taken = self.master.apply(self.info(name, life), decode_event_batch(payload))
        assert taken == (self.lives.get(name) == life)
        return taken

    @rule(
        name=names,
        named=keys,
        encoding=st.sampled_from(["map", "array"]),
        life=st.sampled_from("ab"),
    )
    def stored(self, name: str, named: list[int], encoding: Encoding, life: str) -> None:
        if self.hear(name, BlockStored(list(named)), encoding, life):
            self.blocks[name] |= set(named)

    @rule(
        name=names,
        named=keys,
        encoding=st.sampled_from(["map", "array"]),
        life=st.sampled_from("ab"),
    )
    def removed(self, name: str, named: list[int], encoding: Encoding, life: str) -> None:
        if self.hear(name, BlockRemoved(list(named)), encoding, life):
            self.blocks[name] -= set(named)

    @rule(name=names, life=st.sampled_from("ab"))
    def cleared(self, name: str, life: str) -> None:
        if self.hear(name, AllBlocksCleared(), "map", life):
            self.blocks[name] = set()

    @rule(name=names, picture=pictures, gone=st.booleans(), life=st.sampled_from("ab"))
    def embedding(self, name: str, picture: str, gone: bool, life: str) -> None:
        event = EmbeddingRemoved(picture) if gone else EmbeddingStored(picture)
        if self.hear(name, event, "array", life):
            (self.media[name].discard if gone else self.media[name].add)(picture)

    @rule(name=names, life=st.sampled_from("ab"))
    def embeddings_cleared(self, name: str, life: str) -> None:
        if self.hear(name, AllEmbeddingsCleared(), "map", life):
            self.media[name] = set()

    @rule(prompt=st.lists(st.integers(0, 9), min_size=1, max_size=5))
    def schedule(self, prompt: list[int]) -> None:
        """The answer promises exactly what the chosen worker holds."""
        if not self.lives:
            return
        request = ScheduleRequest("r", len(prompt) * 16 + 1, "m", prompt)
        placed = self.master.schedule(request, self.now)
        assert isinstance(placed, Placement)
        held = self.blocks[placed.decode.instance_id]
        prefix = next((i for i, key in enumerate(prompt) if key not in held), len(prompt))
        assert placed.hit_tokens == prefix * 16
        self.master.ledger.release("r", self.now * 1e3, done=True)

    @invariant()
    def the_index_is_the_model(self) -> None:
        instances = self.master.registry.instances
        assert set(instances) == set(self.lives)
        if not self.master.registry.fleets:
            return
        fleet = self.master.registry.fleet("m")
        name_of = {instance.slot: name for name, instance in instances.items()}
        for key in range(10):
            found = {name_of[slot] for slot in slots_of(fleet.blocks.holders(key))}
            assert found == {name for name, held in self.blocks.items() if key in held}
        for picture in "xyz":
            found = {name_of[slot] for slot in slots_of(fleet.media.holders(picture))}
            assert found == {name for name, held in self.media.items() if picture in held}
        assert len(fleet.blocks) == len(set().union(*self.blocks.values()))


MasterModel.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestMasterModel = MasterModel.TestCase
