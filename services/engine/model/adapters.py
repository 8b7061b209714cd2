"""LoRA adapters beside a language model: rows of one step may belong to different ones.

A linear layer computes all rows at once, then adds B·A·x to the rows of each adapter. Rows without
an adapter keep the very bits that they have in a model without adapters.
Source: Hu et al., LoRA, 2021.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from torch import nn

from protocol.errors import ConfigError, InvalidRequest, Unavailable
from protocol.generate import not_served
from protocol.registry import Name
from services.engine.model.adapter_files import AdapterFiles, Layer, Pair, read_adapter, read_files
from services.engine.model.packed_linear import body_layers

logger = logging.getLogger(__name__)
_RETRY_AFTER_S = 1.0


# Compared by identity: one that is unloaded may still be used beside another of its name.
@dataclass(frozen=True, eq=False)
class Adapter:
    """A `scheduling.request.NamedAdapter` with its weights, which live as long as it is
    loaded or a request has it. `weights`: by layer, A [rank, in] and B [out, rank], scaled."""

    name: str
    revision: str
    weights: Mapping[str, Pair]


@dataclass(frozen=True)
class AdapterRows:
    """The rows of a step that an adapter changes: int64[N], None for all."""

    adapter: Adapter
    rows: torch.Tensor | None


class StepAdapters:
    """Tells the layers of one model which rows are whose while a step runs."""

    def __init__(self) -> None:
        self.groups: Sequence[AdapterRows] = ()


class AdaptedLinear(nn.Module):
    """A linear layer, plain or packed, to whose outputs adapters add."""

    def __init__(self, base: nn.Module, name: str, step: StepAdapters) -> None:
        super().__init__()
        self._base = base
        self._name = name
        self._step = step

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., T, in] → [..., T, out]"""
        out: torch.Tensor = self._base(x)
        for group in self._step.groups:
            if (pair := group.adapter.weights.get(self._name)) is not None:
                # A view, which raises where there is none: what is added to a copy would be lost.
                _add(out.view(-1, out.shape[-1]), x.reshape(-1, x.shape[-1]), pair, group.rows)
        return out


def _add(out: torch.Tensor, x: torch.Tensor, pair: Pair, rows: torch.Tensor | None) -> None:
    """out [T, out] gains what the adapter makes of x [T, in] in its rows."""
    a, b = pair
    if rows is None:
        out.add_(x.mm(a.t()).mm(b.t()))
    else:
        out.index_add_(0, rows, x[rows].mm(a.t()).mm(b.t()))


class Adapters:
    """Those that requests of one model may name, at most `most`."""

    def __init__(
        self,
        layers: Mapping[str, Layer],
        most: int,
        max_rank: int,
        dtype: torch.dtype,
        device: str,
    ) -> None:
        self._layers = layers
        self._most = most
        self._max_rank = max_rank
        self._dtype = dtype
        self._device = device
        self._loaded: dict[str, Adapter] = {}
        # With those that are unloaded but take memory until their last request ends.
        self._alive: weakref.WeakSet[Adapter] = weakref.WeakSet()

    @property
    def revisions(self) -> dict[str, str]:
        """The name of each one's weights."""
        return {name: adapter.revision for name, adapter in self._loaded.items()}

    @property
    def most_bytes(self) -> int:
        """What `most` adapters of the largest rank take that change every layer."""
        width = sum(layer.inputs + layer.outputs for layer in self._layers.values())
        return self._most * self._max_rank * width * self._dtype.itemsize

    def find(self, name: str, revision: str = "") -> Adapter:
        """`ModelNotFound` if it is not loaded, `Unavailable` if the wanted revision is not."""
        if (adapter := self._loaded.get(name)) is None:
            raise not_served(name, revision)
        if revision and revision != adapter.revision:
            raise Unavailable(
                f"LoRA adapter '{name}' has other weights on this worker than elsewhere: load the"
                " same files on all workers",
                code="adapter_mismatch",
                retry_after_s=_RETRY_AFTER_S,
            )
        return adapter

    def load_all(self, folders: Mapping[str, str]) -> None:
        """Those given by flag; `ConfigError` says what is wrong with one."""
        for name, folder in folders.items():
            try:
                self.load(name, Path(folder))
            except InvalidRequest as error:
                raise ConfigError(f"--lora-modules: {error.message}") from error

    def load(self, name: str, folder: Path) -> None:
        """`InvalidRequest` says why it cannot be. One that is loaded already from the same files is
        left as it is."""
        try:
            # Masters accept no other names.
            msgspec.convert(name, Name)
        except msgspec.ValidationError as error:
            raise InvalidRequest(f"lora_name: {error}", param="lora_name") from None
        try:
            self._load(name, folder)
        except (OSError, ValueError, RuntimeError, MemoryError) as error:
            raise InvalidRequest(
                f"LoRA adapter '{name}': cannot load {folder}: {error}", param="lora_path"
            ) from error

    def _load(self, name: str, folder: Path) -> None:
        known = self._loaded.get(name)
        # Before a file is read: an adapter without room is to cost no more than this answer.
        if known is None and len(self._alive) >= self._most:
            raise InvalidRequest(
                f"{self._most} LoRA adapters are loaded, or still used by requests, which is all"
                " that --max-loras has room for: unload one first",
                param="lora_name",
            )
        files = self._files(name, folder)
        revision = files.revision
        if known is not None and known.revision == revision:
            return
        if known is not None:
            raise InvalidRequest(
                f"LoRA adapter '{name}' is loaded from other files: unload it first",
                param="lora_name",
            )
        pairs = read_adapter(files, self._layers, self._max_rank)
        moved = {layer: self._moved(name, layer, pair) for layer, pair in pairs.items()}
        self._loaded[name] = adapter = Adapter(name, revision, moved)
        self._alive.add(adapter)
        logger.info("loaded LoRA adapter '%s' from %s: %d layers", name, folder, len(moved))

    def unload(self, name: str) -> None:
        """No further request may name it; those that have it go on."""
        self.find(name)
        del self._loaded[name]
        logger.info("unloaded LoRA adapter '%s'", name)

    def _moved(self, name: str, layer: str, pair: Pair) -> Pair:
        a, b = (weight.to(self._device, self._dtype).contiguous() for weight in pair)
        if not (a.isfinite().all() and b.isfinite().all()):
            raise InvalidRequest(
                f"LoRA adapter '{name}': scaled by lora_alpha, its weights of '{layer}' are not all"
                f" finite numbers in {str(self._dtype).removeprefix('torch.')}",
                param="lora_path",
            )
        return a, b

    def _files(self, name: str, folder: Path) -> AdapterFiles:
        if not folder.is_dir():
            raise InvalidRequest(
                f"LoRA adapter '{name}': lora_path {folder} is not a folder on this worker's"
                " machine",
                param="lora_path",
            )
        return read_files(name, folder, self._layers, self._max_rank)


def adaptable_layers(model: nn.Module) -> dict[str, Layer]:
    """The linear layers of a language model that see every row of a step, by their names within it.
    An expert sees the rows that are routed to it, the head those that are sampled."""
    return {
        # A model with a head has its layers below `model`, a part without one does not.
        name.removeprefix("model."): Layer(module.in_features, module.out_features)
        for name, module in body_layers(model).items()
        if ".experts." not in name
    }


def adapt(model: nn.Module, layers: Mapping[str, Layer], step: StepAdapters) -> None:
    """Let adapters change these layers, which may have been packed since they were listed."""
    for path in [name for name, _ in model.named_modules()]:
        name = path.removeprefix("model.")
        if name in layers:
            parent, _, own = path.rpartition(".")
            setattr(
                model.get_submodule(parent),
                own,
                AdaptedLinear(model.get_submodule(path), name, step),
            )
