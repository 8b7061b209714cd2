"""What the HTTP process and the engine process of one worker say to each other (msgpack).

Torch-free, so that the HTTP process never imports torch.
"""

from __future__ import annotations

from typing import Any

import msgspec

from connectors.meter import TransferStats
from protocol.errors import ErrorInfo
from protocol.kv_events import EventSource
from protocol.refs import KVLayout
from protocol.registry import Load
from protocol.types import EncodeOutput, EncodeRequest, GenerateRequest, RequestOutput
from services.engine.config import EngineConfig


class Start(msgspec.Struct):
    """First line of an engine's standard input: where its worker listens, and what to be. `beats`
    are `Progress`; empty: the worker hears none."""

    commands: str
    events: str
    config: EngineConfig
    beats: str = ""


class Generate(msgspec.Struct, tag=True):
    request: GenerateRequest
    traced: bool = False  # whether the times of its stages are wanted


class Encode(msgspec.Struct, tag=True):
    request: EncodeRequest
    traced: bool = False  # as in `Generate`


class Abort(msgspec.Struct, tag=True):
    """Stop requests: all choices, or the one named by `index`."""

    request_ids: list[str]
    index: int | None = None


class Query(msgspec.Struct, tag=True):
    """Ask for statistics; `check` adds an integrity report, `keys_since` the keys of the prefix
    cache if its version is another one, `awaited` what is kept for other workers."""

    query_id: int
    check: bool = False
    keys_since: int | None = None
    awaited: bool = False


class ResetCaches(msgspec.Struct, tag=True):
    prefix: bool = False
    encoder: bool = False


class SetLogLevel(msgspec.Struct, tag=True):
    level: str  # debug, info, warning or error


class LoadAdapter(msgspec.Struct, tag=True):
    """Load a LoRA adapter from a folder; answered by `AdapterTable`."""

    query_id: int
    name: str
    folder: str


class UnloadAdapter(msgspec.Struct, tag=True):
    """Take a LoRA adapter away; answered by `AdapterTable`."""

    query_id: int
    name: str


class Profile(msgspec.Struct, tag=True):
    """Begin a trace of the engine's steps, or end it and write it to `path`."""

    path: str = ""


class Shutdown(msgspec.Struct, tag=True):
    pass


ChangeAdapters = LoadAdapter | UnloadAdapter
Control = ResetCaches | SetLogLevel | Profile | Shutdown
Command = Generate | Encode | Abort | Query | ChangeAdapters | Control


class Ready(msgspec.Struct, tag=True):
    """The engine is up."""

    parameter_bytes: dict[str, int]  # by part: "language", "vision"
    max_model_len: int  # tokens of prompt and output, bounded by the pool
    num_blocks: int  # KV blocks of the pool
    block_size: int  # tokens in one block
    kv_layout: KVLayout | None = None  # what a peer must share to take over KV
    kv_endpoint: dict[str, Any] = {}  # by which consumers ask for KV still being computed
    ec_endpoint: dict[str, Any] = {}  # by which consumers ask for embeddings still being made
    ec_compatibility: str = ""  # what a worker must share to hand over embeddings
    kv_bytes_per_token: int = 0  # size of one token's KV
    events: list[EventSource] = []  # where cache events are published
    adapters: dict[str, str] = {}  # LoRA adapters: name → revision


class Stage(msgspec.Struct):
    """A part of one request's time; `start` and `end` in seconds of the engine's clock."""

    request_id: str
    name: str
    start: float
    end: float


class Outputs(msgspec.Struct, tag=True):
    outputs: list[RequestOutput] = []
    encoded: list[EncodeOutput] = []
    stages: list[Stage] = []  # of traced requests, those that have ended


class Statistics(msgspec.Struct, tag=True):
    """A snapshot. Counters start at 0."""

    query_id: int  # of the `Query` that this answers
    gauges: dict[str, float]  # name → value as of now
    counters: dict[str, float]  # name → value since the start
    transfers: list[TransferStats] = []  # one per connector
    problems: list[str] = []  # what an integrity check found wrong
    load: Load = Load()  # for masters
    cache_version: int = 0  # version of the prefix cache
    # short keys of the prefix cache as of `cache_version`, if they were asked for
    cached_keys: list[int] | None = None
    # KV offers and embeddings that other workers have yet to fetch, if they were asked for
    awaited: int = 0


class AdapterTable(msgspec.Struct, tag=True):
    """The LoRA adapters after a change, or why there was none."""

    query_id: int  # of the command that this answers
    adapters: dict[str, str] = {}  # name → revision
    error: ErrorInfo | None = None


class Fatal(msgspec.Struct, tag=True):
    """The engine cannot go on and exits."""

    error: ErrorInfo


Answer = Statistics | AdapterTable
Event = Ready | Outputs | Answer | Fatal


_COMMANDS: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_EVENTS: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)


def encode(message: Command | Event) -> bytes:
    return msgspec.msgpack.encode(message)


def decode_command(data: bytes) -> Command:
    return _COMMANDS.decode(data)


def decode_event(data: bytes) -> Event:
    return _EVENTS.decode(data)
