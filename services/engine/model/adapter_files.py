"""A LoRA adapter as PEFT writes it: a folder of adapter_config.json and adapter_model.safetensors.

Source of the format: https://huggingface.co/docs/peft/developer_guides/checkpoint
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from blake3 import blake3
from safetensors import SafetensorError
from safetensors.torch import load

from services.engine.model.adapter_config import CONFIG, Scales, decoded, refused

WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_OUTER, _MOST_OUTER = ("model.", "language_model."), 3
_KEY = re.compile(r"(?P<layer>.+)\.lora_(?P<side>[AB])(\.default)?\.weight")
_MOST_CONFIG, _MOST_HEADER = 1 << 24, 1 << 27  # bytes; safetensors takes headers of 100 MB

Pair = tuple[torch.Tensor, torch.Tensor]
"""A [rank, in] and B [out, rank] of one linear layer."""


def _most_bytes(layers: Mapping[str, Layer], max_rank: int) -> int:
    """Of a file of weights: those of every layer in the widest type, and its header."""
    width = sum(layer.inputs + layer.outputs for layer in layers.values())
    return max_rank * width * torch.float64.itemsize + _MOST_HEADER


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
    name = files.name
    scales = Scales(name, decoded(name, files.config))
    pairs: dict[str, Pair] = {}
    for path, found in _sides(files).items():
        layer = _layer_of(name, path, layers)
        if layer in pairs:
            raise refused(name, f"{WEIGHTS}: '{path[:200]}' is a second adapter of '{layer}'")
        a, b = _checked(name, path, found, layers[layer], max_rank)
        # Scaled in float32, and rounded once when it becomes the engine's type.
        pairs[layer] = a, b * scales.of(path.removeprefix(_PREFIX))
    return pairs


def _sides(files: AdapterFiles) -> dict[str, dict[str, torch.Tensor]]:
    """A and B by the paths of their layers."""
    name, sides = files.name, dict[str, dict[str, torch.Tensor]]()
    for key, tensor in _tensors(files).items():
        match = _KEY.fullmatch(key)
        if match is None:
            raise refused(name, f"{WEIGHTS}: '{key[:200]}' is not a LoRA weight of a linear layer")
        found = sides.setdefault(match["layer"], {})
        if match["side"] in found:
            raise refused(name, f"{WEIGHTS}: '{key[:200]}' is there with and without '.default'")
        found[match["side"]] = tensor
    return sides


def _tensors(files: AdapterFiles) -> dict[str, torch.Tensor]:
    try:
        found: dict[str, torch.Tensor] = load(files.weights)
    except (SafetensorError, KeyError) as error:
        raise refused(files.name, f"cannot read {WEIGHTS}: {error}") from None
    if not found:
        raise refused(files.name, f"{WEIGHTS} holds no weights")
    return found


def _read(name: str, path: Path, most: int) -> bytes:
    """A regular file whole."""
    try:
        with open(path, "rb", opener=_at_once) as file:
            # Of the open file: a path could mean another one by the time it is read.
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise refused(name, f"cannot read {path}: it is not a regular file")
            if found.st_size > most:
                raise refused(
                    name,
                    f"{path} has {found.st_size} bytes, an adapter of this model and"
                    f" --max-lora-rank at most {most}",
                )
            return file.read(found.st_size)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise refused(name, f"cannot read {path}: {reason}") from None


def _at_once(path: str, flags: int) -> int:
    """Opens a pipe too without waiting for its writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def _layer_of(name: str, path: str, layers: Mapping[str, Layer]) -> str:
    """The layer that a path of the whole model means. Checkpoints made before transformers 4.52
    have the language model elsewhere."""
    inner = path.removeprefix(_PREFIX)
    for _ in range(_MOST_OUTER):
        outer = next((prefix for prefix in _OUTER if inner.startswith(prefix)), "")
        if inner in layers or not outer:
            break
        inner = inner.removeprefix(outer)
    if inner not in layers:
        raise refused(
            name,
            f"its weight '{path.removeprefix(_PREFIX)[:200]}' belongs to no linear layer of"
            " this model's language part; other parts (vision, experts, embeddings) take no"
            " adapters",
        )
    return inner


def _checked(
    name: str, path: str, sides: Mapping[str, torch.Tensor], layer: Layer, max_rank: int
) -> Pair:
    a, b = sides.get("A"), sides.get("B")
    if a is None or b is None:
        raise refused(name, f"{WEIGHTS}: '{path[:200]}' has only one of lora_A and lora_B")
    shapes = tuple(a.shape), tuple(b.shape)
    rank = shapes[0][0] if shapes[0] else 0
    if not rank or shapes != ((rank, layer.inputs), (layer.outputs, rank)):
        raise refused(
            name,
            f"it is of another model: '{path[:200]}' takes {layer.inputs} inputs and gives"
            f" {layer.outputs} outputs here, its lora_A and lora_B are {shapes[0]} and {shapes[1]}",
        )
    if rank > max_rank:
        raise refused(name, f"its rank {rank} is above --max-lora-rank {max_rank}")
    return a.float(), b.float()
