"""References to KV blocks of another process.

Their wire form is the value of `kv_transfer_params` in vLLM's EPD protocol: its own names where it
has one, ours beside them.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, field

from protocol.bounds import INT32_MAX, Int64, Natural, Port, Positive, Seconds
from protocol.errors import InvalidRequest


class KVGroup(msgspec.Struct, frozen=True):
    """Layers that share a KV shape; `window` is the sliding window in tokens, 0 for none."""

    layers: tuple[int, ...]
    kv_heads: int
    k_dim: int
    v_dim: int
    window: int = 0


class KVLayout(msgspec.Struct, frozen=True):
    """Everything two engines must agree on before a KV block of one means anything to the other."""

    groups: tuple[KVGroup, ...]
    block_size: int
    dtype: str
    tp_size: int = 1

    def block_bytes(self, itemsize: int) -> int:
        """Bytes of one block over all layers, keys and values."""
        per_token = sum(
            len(group.layers) * group.kv_heads * (group.k_dim + group.v_dim)
            for group in self.groups
        )
        return per_token * self.block_size * itemsize


RequestId = Annotated[str, Meta(max_length=1024)]
HostName = Annotated[str, Meta(max_length=253)]
Label = Annotated[str, Meta(max_length=1024)]
RopeDelta = Annotated[int, Meta(ge=-INT32_MAX, le=INT32_MAX)]


class KVRef(msgspec.Struct, frozen=True, omit_defaults=True):
    """KV blocks that a producer holds for a request until released or `lease_s` has passed. Fields
    that the wire calls otherwise are named so in errors.
    """

    request_id: RequestId = field(name="remote_request_id")  # the producer's id of the request
    instance_id: Label = field(name="remote_engine_id")  # the producer
    # indices into the producer's pool, in prompt order
    block_ids: tuple[Natural, ...] = field(name="remote_block_ids")
    # prompt tokens with KV; 0: still being computed, the first tokens come with it
    num_tokens: Natural = field(name="remote_num_tokens")
    rope_delta: RopeDelta = 0  # what decode adds to a token's index for its rotary position
    # where the producer's side channel listens
    host: HostName = field(default="", name="remote_host")
    port: Port = field(default=0, name="remote_port")  # TCP port there
    compatibility: Label = ""  # what both sides must share: model, weights and KV layout
    generation: Int64 = 0  # counts the offers of this request; another one is another offer
    lease_s: Seconds = 0.0  # seconds without a heartbeat after which the producer frees the blocks
    tp_size: Positive = 1  # tensor-parallel ranks of the producer
    descriptor: dict[str, Any] = {}  # how the transport finds the memory; opaque

    @property
    def growing(self) -> bool:
        """True if the producer has yet to compute this KV."""
        return self.num_tokens == 0

    def to_params(self) -> dict[str, Any]:
        """`kv_transfer_params` for the consumer: vLLM's keys, then ours under `triptych`."""
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": self.instance_id,
            "remote_request_id": self.request_id,
            # vLLM has a list for each of its KV cache groups.
            "remote_block_ids": [list(self.block_ids)],
            "remote_host": self.host,
            "remote_port": self.port,
            "remote_num_tokens": self.num_tokens,
            "remote_blocks_expiry_time": None,
            "tp_size": self.tp_size,
            "transfer_mode": "pull",
            "triptych": {
                "rope_delta": self.rope_delta,
                "compatibility": self.compatibility,
                "generation": self.generation,
                "lease_s": self.lease_s,
                "descriptor": self.descriptor,
            },
        }

    @staticmethod
    def from_params(params: dict[str, Any]) -> KVRef:
        """Inverse of `to_params`; `InvalidRequest` names what is missing or malformed."""
        own = params.get("triptych")
        if not isinstance(own, dict):
            raise InvalidRequest(
                "kv_transfer_params lack the 'triptych' part: these KV blocks "
                "were not made by a Triptych worker",
                param="kv_transfer_params",
            )
        groups = params.get("remote_block_ids")
        if not isinstance(groups, list) or len(groups) != 1:
            raise InvalidRequest(
                "kv_transfer_params.remote_block_ids must hold one list", param="kv_transfer_params"
            )
        fields = {
            # First, so that our part cannot speak in the place of vLLM's fields.
            **own,
            "remote_request_id": params.get("remote_request_id"),
            "remote_engine_id": params.get("remote_engine_id"),
            "remote_block_ids": groups[0],
            "remote_num_tokens": params.get("remote_num_tokens"),
            "remote_host": params.get("remote_host"),
            "remote_port": params.get("remote_port"),
            "tp_size": params.get("tp_size", 1),
        }
        try:
            return msgspec.convert(fields, KVRef)
        except msgspec.ValidationError as error:
            raise InvalidRequest(
                f"kv_transfer_params: {error}", param="kv_transfer_params"
            ) from None


def compatibility_of(params: dict[str, Any] | None) -> str:
    """What two workers must agree on to hand over KV, as a handle or an endpoint says; "" if it
    does not."""
    own = (params or {}).get("triptych")
    found = own.get("compatibility") if isinstance(own, dict) else None
    return found if isinstance(found, str) else ""


def fits(one: str, other: str) -> bool:
    """Whether workers of two compatibilities, of their KV or of their EC, can hand over to each
    other; one that does not say fits all."""
    return not one or not other or one == other


def wants_remote_decode(params: dict[str, Any] | None) -> bool:
    """True if the caller asks this worker to prefill and keep the KV for another to fetch."""
    return bool(params and params.get("do_remote_decode"))


def has_remote_prefill(params: dict[str, Any] | None) -> bool:
    """True if the KV of the prompt is to be fetched from another worker."""
    return bool(params and params.get("do_remote_prefill"))
