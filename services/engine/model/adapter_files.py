"""A LoRA adapter as PEFT writes it: a folder of adapter_config.json and adapter_model.safetensors.

Source of the format: https://huggingface.co/docs/peft/developer_guides/checkpoint
"""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
from blake3 import blake3
from msgspec import Meta
from safetensors import SafetensorError
from safetensors.torch import load

from protocol.errors import InvalidRequest

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_OUTER = ("model.", "language_model.")
_KEY = re.compile(r"(?P<layer>.+)\.lora_(?P<side>[AB])(\.default)?\.weight")
_MOST_CONFIG, _MOST_HEADER = 1 << 24, 1 << 27  # bytes; safetensors takes headers of 100 MB
_Rank = Annotated[int, Meta(ge=1, le=1 << 16)]

Pair = tuple[torch.Tensor, torch.Tensor]
"""A [rank, in] and B [out, rank] of one linear layer."""


class AdapterConfig(msgspec.Struct, frozen=True):
    """The fields of adapter_config.json that change what is computed; see `unserved`."""

    peft_type: str  # LORA, or it is refused
    r: _Rank  # the rank
    lora_alpha: float = 8.0  # over the rank: how much an adapter counts
    use_rslora: bool = False  # over the root of the rank instead
    use_dora: bool = False  # refused: it changes the norms of weights
    fan_in_fan_out: bool = False  # refused: weights lie the other way round
    lora_bias: bool = False  # refused: B has a bias
    bias: str = "none"  # none, or it is refused
    modules_to_save: list[str] | None = None  # layers given whole, which are refused
    rank_pattern: dict[str, _Rank] | None = None  # other ranks, by patterns of layer names
    alpha_pattern: dict[str, float] | None = None  # other values of lora_alpha, by the same

    def scale(self, layer: str) -> float:
        """What B·A of a layer is multiplied by."""
        rank = _by_pattern(self.rank_pattern, layer, self.r)
        alpha = _by_pattern(self.alpha_pattern, layer, self.lora_alpha)
        return alpha / math.sqrt(rank) if self.use_rslora else alpha / rank

    def unserved(self) -> str:
        """The field whose value this engine has no arithmetic for, "" if there is none."""
        flags = ("use_dora", "fan_in_fan_out", "lora_bias", "modules_to_save")
        found = [name for name in flags if getattr(self, name)]
        return "bias" if self.bias != "none" else next(iter(found), "")


def _most_bytes(layers: Mapping[str, Layer], max_rank: int) -> int:
    """Of a file of weights: those of every layer in the widest type, and its header."""
    width = sum(layer.inputs + layer.outputs for layer in layers.values())
    return max_rank * width * torch.float64.itemsize + _MOST_HEADER


def _by_pattern(pattern: Mapping[str, Any] | None, layer: str, default: float) -> float:
    """PEFT's rule: a key is a regular expression for the end of a layer's name."""
    for key, value in (pattern or {}).items():
        if _ending(key).fullmatch(layer):
            return float(value)
    return default


def _ending(key: str) -> re.Pattern[str]:
    return re.compile(rf"(.*\.)?({key})")


@dataclass(frozen=True)
class Layer:
    """Sizes of a linear layer that adapters may change."""

    inputs: int
    outputs: int


@dataclass(frozen=True)
class AdapterFiles:
    """The two files of an adapter, read once: what its revision names is what is loaded."""

    name: str
    config: bytes
    weights: bytes

    @property
    def revision(self) -> str:
        """A digest of all of them, wherever they lie: 40 hex digits."""
        # The length first, so that no other pair of files is the same run of bytes.
        hasher = blake3(len(self.config).to_bytes(8, "little"))
        hasher.update(self.config)
        hasher.update(self.weights)
        return hasher.hexdigest()[:40]


def read_files(name: str, folder: Path, layers: Mapping[str, Layer], max_rank: int) -> AdapterFiles:
    """`InvalidRequest` says why they cannot be read. See `read_adapter`."""
    return AdapterFiles(
        name,
        _read(name, folder / CONFIG, _MOST_CONFIG),
        _read(name, folder / WEIGHTS, _most_bytes(layers, max_rank)),
    )


def read_adapter(
    files: AdapterFiles, layers: Mapping[str, Layer], max_rank: int
) -> dict[str, Pair]:
    """The weights of an adapter by layer, B scaled. `layers`: those that it may change, by their
    names within the language model. `InvalidRequest` says what is wrong with it."""
    name, config = files.name, _config(files)
    if field := config.unserved():
        raise _refused(name, f"{CONFIG}: {field} is set, which this engine does not serve")
    sides: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in _tensors(files).items():
        match = _KEY.fullmatch(key)
        if match is None:
            raise _refused(name, f"{WEIGHTS}: '{key[:200]}' is not a LoRA weight of a linear layer")
        sides.setdefault(match["layer"], {})[match["side"]] = tensor
    pairs: dict[str, Pair] = {}
    for path, found in sides.items():
        layer = _layer_of(name, path, layers)
        a, b = _checked(name, path, found, layers[layer], max_rank)
        # Scaled in float32, and rounded once when it becomes the engine's type.
        pairs[layer] = a, b * config.scale(path.removeprefix(_PREFIX))
    return pairs


def _config(files: AdapterFiles) -> AdapterConfig:
    name = files.name
    try:
        config = msgspec.json.decode(files.config, type=AdapterConfig)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _refused(name, f"{CONFIG}: {error}") from None
    if config.peft_type != "LORA":
        raise _refused(name, f"{CONFIG}: peft_type '{config.peft_type[:64]}' is not LORA")
    for key in (*(config.rank_pattern or ()), *(config.alpha_pattern or ())):
        try:
            _ending(key)
        except (re.error, OverflowError, RecursionError) as error:
            why = f"{CONFIG}: '{key[:200]}' is not a regular expression: {error}"
            raise _refused(name, why) from None
    return config


def _tensors(files: AdapterFiles) -> dict[str, torch.Tensor]:
    try:
        found: dict[str, torch.Tensor] = load(files.weights)
    except (SafetensorError, KeyError) as error:
        raise _refused(files.name, f"cannot read {WEIGHTS}: {error}") from None
    if not found:
        raise _refused(files.name, f"{WEIGHTS} holds no weights")
    return found


def _read(name: str, path: Path, most: int) -> bytes:
    """A regular file whole."""
    try:
        with open(path, "rb", opener=_at_once) as file:
            # Of the open file: a path could mean another one by the time it is read.
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise _refused(name, f"cannot read {path}: it is not a regular file")
            if found.st_size > most:
                raise _refused(
                    name,
                    f"{path} has {found.st_size} bytes, an adapter of this model and"
                    f" --max-lora-rank at most {most}",
                )
            return file.read(found.st_size)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _refused(name, f"cannot read {path}: {reason}") from None


def _at_once(path: str, flags: int) -> int:
    """Opens a pipe too without waiting for its writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def _layer_of(name: str, path: str, layers: Mapping[str, Layer]) -> str:
    """The layer that a path of the whole model means. Checkpoints made before transformers 4.52
    have the language model elsewhere."""
    inner = path.removeprefix(_PREFIX)
    while inner not in layers:
        outer = next((prefix for prefix in _OUTER if inner.startswith(prefix)), None)
        if outer is None:
            raise _refused(
                name,
                f"its weight '{path.removeprefix(_PREFIX)[:200]}' belongs to no linear layer of"
                " this model's language part; other parts (vision, experts, embeddings) take no"
                " adapters",
            )
        inner = inner.removeprefix(outer)
    return inner


def _checked(
    name: str, path: str, sides: Mapping[str, torch.Tensor], layer: Layer, max_rank: int
) -> Pair:
    a, b = sides.get("A"), sides.get("B")
    if a is None or b is None:
        raise _refused(name, f"{WEIGHTS}: '{path[:200]}' has only one of lora_A and lora_B")
    shapes = tuple(a.shape), tuple(b.shape)
    rank = shapes[0][0] if shapes[0] else 0
    if not rank or shapes != ((rank, layer.inputs), (layer.outputs, rank)):
        raise _refused(
            name,
            f"it is of another model: '{path[:200]}' takes {layer.inputs} inputs and gives"
            f" {layer.outputs} outputs here, its lora_A and lora_B are {shapes[0]} and {shapes[1]}",
        )
    if rank > max_rank:
        raise _refused(name, f"its rank {rank} is above --max-lora-rank {max_rank}")
    return a.float(), b.float()


def _refused(name: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"LoRA adapter '{name}': {why}", param="lora_path")
